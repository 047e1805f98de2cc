"""The first start of an installation: database, administrator, first key."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connection

from accounts.credentials import check_token_key
from accounts.models import Account
from gateway.models import ApiKey
from gateway.rows import create_key, unapplied_migrations

ADMIN = "admin"
FIRST_KEY = "first"


class NotInstalled(RuntimeError):
    """The database is not ready. The message says what to do."""


@dataclass(frozen=True, slots=True)
class FirstSecrets:
    """What the first start made; shown once, stored nowhere in this form."""

    password: str = field(repr=False)
    key: str = field(repr=False)


def prepare_database() -> None:
    """Bring the default SQLite database up to date; any other one is its operator's, and must be so already.

    Raises `NotInstalled`, `accounts.credentials.CredentialsError` for a wrong token key, and Django's errors.
    """
    if unapplied_migrations():
        if connection.vendor != "sqlite":
            raise NotInstalled("The database lacks migrations; run `manage.py migrate` first.")
        call_command("migrate", interactive=False, verbosity=0)


def check_credentials(token_keys: list[str]) -> None:
    """Raise `accounts.credentials.CredentialsError` unless every stored credential can be opened."""
    check_token_key(Account.objects.only("name", "credentials"), token_keys)


def make_first_secrets() -> FirstSecrets | None:
    """Create the administrator and the first key of a new installation; None when there are users or keys."""
    users = get_user_model()
    if users.objects.exists() or ApiKey.objects.exists():
        return None
    password = secrets.token_urlsafe(12)
    users.objects.create_superuser(ADMIN, password=password)
    return FirstSecrets(password, create_key(FIRST_KEY).text)


def has_accounts() -> bool:
    return Account.objects.exists()
