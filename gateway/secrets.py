"""Secrets of an installation, kept as files only their owner can read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


class SecretError(RuntimeError):
    """A secret file cannot be used. The message says which file and what to do."""


def read_or_create(path: Path, make: Callable[[], str]) -> str:
    """Return the secret in `path`, made with `make` and written with mode 0600 if there is none yet.

    Two processes that start at once agree: the file is created exclusively, the loser reads the winner's.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read(path)
    except OSError as error:
        raise SecretError(
            f"The secret file {path} cannot be written ({error.strerror}); set GATEWAY_DATA_DIR to a folder you own."
        ) from error
    with os.fdopen(descriptor, "w") as file:
        secret = make()
        file.write(secret + "\n")
    return secret


def read(path: Path) -> str:
    """Return the secret in `path`; raises `SecretError` when it is missing, unreadable or empty."""
    try:
        secret = path.read_text().strip()
    except OSError as error:
        raise SecretError(f"The secret file {path} cannot be read ({error.strerror}).") from error
    if not secret:
        raise SecretError(f"The secret file {path} is empty; restore it from a backup.")
    return secret
