"""Django settings. Tunables of the traffic path live in `conf.py`; secrets live in files (`secrets.py`)."""

from __future__ import annotations

import os
import secrets as random_secrets
from pathlib import Path

import environ
from cryptography.fernet import Fernet

from gateway.conf import Tunables, read_tunables
from gateway.secrets import SecretError, read_or_create

env = environ.Env()
BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = Path(env.str("GATEWAY_DATA_DIR", default=str(BASE_DIR / "var"))).absolute()
try:
    DATA_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
except OSError as error:
    raise SecretError(f"The data folder {DATA_DIR} cannot be made ({error.strerror}); set GATEWAY_DATA_DIR.") from None

GATEWAY: Tunables = read_tunables(os.environ)
SECRET_KEY = read_or_create(DATA_DIR / "secret_key", lambda: random_secrets.token_urlsafe(48))
# One Fernet key a line, newest first: credentials are written with the first and read with any.
TOKEN_KEYS = read_or_create(DATA_DIR / "token_keys", lambda: Fernet.generate_key().decode()).split()

DEBUG = env.bool("DEBUG", default=False)
# The gateway identifies callers by key and the admin by session; `Host` is trusted for neither.
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["*"])
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "gateway",
    "accounts",
    "dashboard",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
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

DATABASES = {"default": env.db_url("DATABASE_URL", default=f"sqlite:///{DATA_DIR / 'pointsman.sqlite3'}")}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
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
    "recover_limited": {"task": "accounts.recover_limited", "schedule": 10.0},
    "refresh_tokens": {"task": "accounts.refresh_tokens", "schedule": 60.0},
    "poll_usage": {"task": "accounts.poll_usage", "schedule": 300.0},
    "purge_stale_owners": {"task": "gateway.purge_stale_owners", "schedule": 3600.0},
    "prune_turns": {"task": "gateway.prune_turns", "schedule": 3600.0},
}

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"
WHITENOISE_USE_FINDERS = True
LOGIN_URL = "admin:login"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
X_FRAME_OPTIONS = "DENY"
