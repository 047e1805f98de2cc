"""Which port the gateway is on when no option says so."""

from __future__ import annotations

import os

from django.core.management.base import CommandError

DEFAULT_PORT = 8045


def configured_port() -> int:
    """`PORT`, else `GATEWAY_PORT`, else 8045; raises `CommandError` for a value that is no port."""
    for name in ("PORT", "GATEWAY_PORT"):
        text = os.environ.get(name)
        if text:
            if not (text.isascii() and text.isdigit() and int(text) < 65536):
                raise CommandError(f"{name} must be a port number, not {text!r}.")
            return int(text)
    return DEFAULT_PORT
