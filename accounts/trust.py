"""Which certificates outgoing connections trust: httpx's own choice, loaded once for the process."""

from __future__ import annotations

import ssl
from functools import lru_cache

import httpx


@lru_cache(maxsize=1)
def trusted() -> ssl.SSLContext:
    """The context of every client without a proxy; reading the certificates takes a thirtieth of a second each time."""
    return httpx.create_ssl_context(trust_env=False)
