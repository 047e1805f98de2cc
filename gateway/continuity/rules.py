"""Which conversation a request belongs to, and how strongly it is tied to an account. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gateway.protocol.body import Body


class Strength(StrEnum):
    """`hard`: the account holds state that this request needs. `soft`: it is better off there (prompt cache)."""

    HARD = "hard"
    SOFT = "soft"


class SessionKind(StrEnum):
    """What the session's key was taken from. A thread is narrower than a session, a session than a cache key."""

    THREAD = "thread-id"
    SESSION = "session-id"
    CACHE = "prompt_cache_key"


@dataclass(frozen=True, slots=True)
class SessionKey:
    """A conversation of one client (the id of its key). `digest` hides the client's own id."""

    client: int
    kind: SessionKind
    digest: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.digest}"


def session_key(client: int, headers: Mapping[str, str], body: Body) -> SessionKey | None:
    """The narrowest name the request gives its conversation, or None when it gives none."""
    named = (
        (SessionKind.THREAD, headers.get("thread-id")),
        (SessionKind.SESSION, headers.get("session-id") or headers.get("session_id")),
        (SessionKind.CACHE, body.prompt_cache_key),
    )
    for kind, value in named:
        if value:
            return SessionKey(client, kind, digest(client, kind, value))
    return None


def digest(client: int, kind: SessionKind, value: str) -> str:
    """The key under which a client's own session id is stored; the same id of another client gives another."""
    return hashlib.sha256(f"{client}\n{kind}\n{value}".encode()).hexdigest()
