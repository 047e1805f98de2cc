"""Sealing what is secret with another key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from django.apps import apps
from django.db.models import Model

from accounts.credentials import (
    BrokenCredentials,
    WrongTokenKey,
    has_newest_key,
    proxy_of,
    seal,
    seal_text,
    unseal,
    unseal_text,
)
from accounts.models import Account
from accounts.sealed import SealedText


@dataclass(slots=True)
class Rotation:
    """What became of all records with secrets: sealed anew, sealed with the newest key before, not to be opened.

    `left` counts those that others changed at the same time; they may have an older key.
    """

    sealed: int = 0
    newest: int = 0
    unopened: tuple[str, ...] = ()
    left: int = 0

    def count(self, written: bool) -> None:
        """Count a record that was to be sealed anew."""
        if written:
            self.sealed += 1
        else:
            self.left += 1


def rotate_keys(keys: Sequence[str]) -> Rotation:
    """Seal every secret in the database with the first of `keys`, one by one: it can be stopped and begun again.

    Raises `InvalidTokenKey`. A gateway that was started with other keys cannot open what this has sealed.
    """
    rotation = Rotation()
    for account in Account.objects.exclude(credentials="", proxy="").only("name", "credentials", "proxy"):
        _rotate_account(account, keys, rotation)
    for model, name in sealed_columns():
        for row in model._default_manager.exclude(**{name: ""}):
            _rotate_row(row, name, keys, rotation)
    return rotation


def sealed_columns() -> Iterator[tuple[type[Model], str]]:
    """Every column of secrets beside those of accounts, in whatever app."""
    for model in apps.get_models():
        for field in model._meta.concrete_fields:
            if isinstance(field, SealedText):
                yield model, field.name


def _rotate_account(account: Account, keys: Sequence[str], rotation: Rotation) -> None:
    if all(has_newest_key(sealed, keys) for sealed in (account.credentials, account.proxy) if sealed):
        rotation.newest += 1
        return
    try:
        credentials = account.credentials and seal(unseal(account.credentials, keys), keys)
        proxy = seal_text(proxy_of(account, keys) or "", keys)
    except (WrongTokenKey, BrokenCredentials):
        rotation.unopened += (account.name,)
        return
    unchanged = Account.objects.filter(id=account.id, credentials=account.credentials, proxy=account.proxy)
    rotation.count(unchanged.update(credentials=credentials, proxy=proxy) == 1)


def _rotate_row(row: Model, name: str, keys: Sequence[str], rotation: Rotation) -> None:
    old = str(getattr(row, name))
    if has_newest_key(old, keys):
        rotation.newest += 1
        return
    try:
        new = seal_text(unseal_text(old, keys), keys)
    except WrongTokenKey:
        rotation.unopened += (f"{row._meta.verbose_name} {row}",)
        return
    unchanged = type(row)._default_manager.filter(pk=row.pk, **{name: old})
    rotation.count(unchanged.update(**{name: new}) == 1)
