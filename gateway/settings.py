"""Django settings. Tunables of the traffic path live in `conf.py`; secrets live in files (`secrets.py`)."""

from __future__ import annotations

import os
import secrets as random_secrets
from datetime import timedelta
from pathlib import Path

import environ
from cryptography.fernet import Fernet

from gateway.conf import Tunables, read_tunables
from gateway.environment import keep_private, read_database, read_flag
from gateway.forwarding.address import read_peer_address
from gateway.secrets import SecretError, read_or_create

env = environ.Env()
BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = Path(env.str("GATEWAY_DATA_DIR", default=str(BASE_DIR / "var"))).absolute()
try:
    DATA_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
except OSError as error:
    raise SecretError(f"The data folder {DATA_DIR} cannot be made ({error.strerror}); set GATEWAY_DATA_DIR.") from None

GATEWAY: Tunables = read_tunables(os.environ)
PEER_ADDRESS = read_peer_address(os.environ)
# Files that were missing until now: new in a new installation, and lost in any other.
MADE_SECRETS = tuple(name for name in ("secret_key", "token_keys") if not (DATA_DIR / name).exists())
SECRET_KEY = read_or_create(DATA_DIR / "secret_key", lambda: random_secrets.token_urlsafe(48))
# One Fernet key a line, newest first: credentials are written with the first and read with any.
TOKEN_KEYS = read_or_create(DATA_DIR / "token_keys", lambda: Fernet.generate_key().decode()).split()

DEBUG = read_flag(os.environ, "DEBUG", default=False)
# The gateway identifies callers by key and the admin by session; `Host` is trusted for neither.
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["*"])
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])

INSTALLED_APPS = [
    # Before the admin, whose templates it replaces.
    "dashboard.apps.DashboardConfig",
    "dashboard.apps.SiteConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "axes",
    "django_otp",
    # Only for what earlier versions have stored: the dashboard has a model of its own, which seals the secrets.
    "django_otp.plugins.otp_totp",
    "gateway",
    "gateway.watch.apps.WatchConfig",
    "accounts",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django_otp.middleware.OTPMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "dashboard.policy.content_security_policy",
    "axes.middleware.AxesMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
ROOT_URLCONF = "gateway.urls"
ASGI_APPLICATION = "gateway.asgi.application"
# The ASGI application behind the WebSockets of the admin; the traffic code does not know it by any other name.
ADMIN_SOCKETS = "dashboard.overview.live.application"

DATABASES = {"default": read_database(os.environ, f"sqlite:///{DATA_DIR / 'pointsman.sqlite3'}")}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    keep_private(Path(DATABASES["default"]["NAME"]))
    DATABASES["default"]["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 10,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    }
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

# With a broker Celery does the upkeep; without one a gateway process does.
CELERY_BROKER_URL = env.str("CELERY_BROKER_URL", default="")
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_DEFAULT_QUEUE = env.str("CELERY_QUEUE", default="pointsman")
CELERY_BEAT_SCHEDULE = {
    # What no worker has taken until the next one is due is dropped, so that nothing piles up while there is none.
    name: {"task": task, "schedule": every, "options": {"expires": every}}
    for name, task, every in (
        ("recover_limited", "accounts.recover_limited", 10.0),
        ("refresh_tokens", "accounts.refresh_tokens", 60.0),
        ("finish_drains", "gateway.finish_drains", 10.0),
        ("probe_circuits", "accounts.probe_circuits", 10.0),
        ("poll_usage", "accounts.poll_usage", 300.0),
        ("poll_models", "accounts.poll_models", 3600.0),
        ("find_models", "accounts.find_models", 300.0),
        ("purge_stale_owners", "gateway.purge_stale_owners", 3600.0),
        ("count_turns", "gateway.count_turns", 15.0),
        ("forget_old", "gateway.forget_old", 3600.0),
        ("prune_turns", "gateway.prune_turns", 3600.0),
    )
}

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
FORMAT_MODULE_PATH = "dashboard.formats"
STATIC_URL = "static/"
WHITENOISE_USE_FINDERS = True
LOGIN_URL = "admin:login"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
# Behind a proxy that ends TLS: cookies for TLS alone. Known by the origin that such a proxy needs anyway.
BEHIND_TLS = read_flag(
    os.environ, "ADMIN_BEHIND_TLS", default=any(each.startswith("https://") for each in CSRF_TRUSTED_ORIGINS)
)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = BEHIND_TLS
if BEHIND_TLS:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_REFERRER_POLICY = "same-origin"

# Whoever guesses passwords is stopped for a while: one name from one address, so that nobody can lock out others.
AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "django.contrib.auth.backends.ModelBackend"]
AXES_FAILURE_LIMIT = 5
AXES_COOLOFF_TIME = timedelta(minutes=15)
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_LOCKOUT_TEMPLATE = "dashboard/locked.html"
AXES_RESET_ON_SUCCESS = True
AXES_VERBOSE = False
# The dashboard registers those of its tables that it fills.
AXES_ENABLE_ADMIN = False
OTP_TOTP_ISSUER = "Pointsman"
X_FRAME_OPTIONS = "DENY"
