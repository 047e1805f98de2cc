"""Settings of Django that come from the environment, refused in one sentence where they cannot work."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured

from gateway.conf import SettingError

TRUE, FALSE = frozenset({"1", "true", "yes", "on"}), frozenset({"", "0", "false", "no", "off"})
DATABASES = {
    "sqlite": "django.db.backends.sqlite3",
    "postgres": "django.db.backends.postgresql",
    "postgresql": "django.db.backends.postgresql",
}


def read_flag(environment: Mapping[str, str], name: str, *, default: bool) -> bool:
    """A switch; raises `SettingError` for what is neither on nor off."""
    text = environment.get(name)
    if text is None:
        return default
    if text.strip().lower() not in TRUE | FALSE:
        raise SettingError(f"{name} must be on or off, not {text!r}.")
    return text.strip().lower() in TRUE


def read_database(environment: Mapping[str, str], default: str) -> dict[str, Any]:
    """Django's settings of a database; raises `SettingError` for a URL that names none that the gateway knows."""
    url = environment.get("DATABASE_URL", default)
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in DATABASES:
        known = "sqlite:///path or postgres://user:password@host/name"
        # The rest may hold a password.
        raise SettingError(f"DATABASE_URL must begin with {known}; it begins with {scheme[:20]!r}.")
    try:
        read: dict[str, Any] = environ.Env.db_url_config(url)
    except (ImproperlyConfigured, ValueError) as error:
        raise SettingError(f"DATABASE_URL cannot be read ({type(error).__name__}); check host and port.") from None
    if not read.get("NAME"):
        raise SettingError("DATABASE_URL names no database; write its name, or the path of its file, at the end.")
    return read


def keep_private(path: Path) -> None:
    """Make sure that the database file `path` is for its owner alone; SQLite makes the files beside it alike.

    A file of somebody else, or in a folder that does not exist, is left for the database to complain about.
    """
    try:
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        for each in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
            if each.exists() and each.stat().st_mode & 0o077:
                each.chmod(0o600)
    except OSError:
        return


def unknown_settings(environment: Mapping[str, str], known: Iterable[str]) -> list[str]:
    """A sentence for each `GATEWAY_…` variable that means nothing, with what it may have been meant to be."""
    names = sorted(known)
    rests = {name.removeprefix("GATEWAY_"): name for name in names}
    found = []
    for name in sorted(environment):
        if name.startswith("GATEWAY_") and name not in names:
            near = difflib.get_close_matches(name.removeprefix("GATEWAY_"), rests, 1)
            found.append(f"{name} is no setting" + (f"; did you mean {rests[near[0]]}?" if near else "."))
    return found
