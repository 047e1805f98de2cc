"""Secrets of an installation, kept as files only their owner can read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


class SecretError(RuntimeError):
    """A secret file cannot be used. The message says which file and what to do."""


def read_or_create(path: Path, make: Callable[[], str]) -> str:
    """Return the secret in `path`, made with `make` and written with mode 0600 if there is none yet.

    Processes that start at once agree: the file appears whole, for the first of them only, and the others read that.
    """
    if not path.exists():
        try:
            _write_once(path, make() + "\n")
        except OSError as error:
            raise SecretError(
                f"The secret file {path} cannot be written ({error.strerror}); "
                "set GATEWAY_DATA_DIR to a folder you own."
            ) from error
    return read(path)


def _write_once(path: Path, text: str) -> None:
    """Let `path` be a file with `text`, unless there is one already."""
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.link(draft, path)
    except FileExistsError:
        # Another process was first.
        pass
    finally:
        os.unlink(draft)


def read(path: Path) -> str:
    """Return the secret in `path`; raises `SecretError` when it is missing, unreadable or empty."""
    try:
        secret = path.read_text().strip()
    except OSError as error:
        raise SecretError(f"The secret file {path} cannot be read ({error.strerror}).") from error
    if not secret:
        raise SecretError(f"The secret file {path} is empty; restore it from a backup.")
    return secret
