"""Which conversation a request belongs to, and how strongly it is tied to an account. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gateway.protocol.body import Body, Bound


class Strength(StrEnum):
    """`hard`: the account holds state that the conversation needs. `soft`: it is better off there (prompt cache).

    `left`: a turn state whose turn has gone on elsewhere; it is still shown to its own account alone.
    """

    HARD = "hard"
    SOFT = "soft"
    LEFT = "left"


class SessionKind(StrEnum):
    """What the session's key was taken from.

    First the names that clients give their conversations; a thread is narrower than a session, a session than a
    cache key. Then what is evidence by itself, and always hard: it is some account's, whatever the conversation.
    """

    THREAD = "thread-id"
    SESSION = "session-id"
    CACHE = "prompt_cache_key"
    TURN_STATE = "turn-state"
    CONVERSATION = "conversation"
    FILE = "file"


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


# Files and the like that one request may tie to its account; beyond that only the conversation is tied.
MOST_TIED = 64

_KINDS = {
    Bound.CONVERSATION: SessionKind.CONVERSATION,
    Bound.FILE: SessionKind.FILE,
    Bound.CONTAINER: SessionKind.FILE,
    Bound.VECTOR_STORE: SessionKind.FILE,
}


def evidence_keys(client: int, turn_state: str | None, body: Body) -> tuple[SessionKey, ...]:
    """What in the request is some account's by itself, apart from encrypted content and the response it continues."""
    named = sorted((_KINDS[each.kind], each.value) for each in body.references if each.kind in _KINDS)
    tied = [SessionKey(client, kind, digest(client, kind, value)) for kind, value in named[:MOST_TIED]]
    return tuple(tied if turn_state is None else [turn_state_key(client, turn_state), *tied])


def file_key(client: int, file: str) -> SessionKey:
    """An uploaded file as the key of what is known of it."""
    kind = _KINDS[Bound.FILE]
    return SessionKey(client, kind, digest(client, kind, file))


def turn_state_key(client: int, turn_state: str) -> SessionKey:
    """Turn state as the key of what is known of it."""
    return SessionKey(client, SessionKind.TURN_STATE, digest(client, SessionKind.TURN_STATE, turn_state))


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of hard evidence: what it is, in words, and the account it belongs to, None when nobody has seen it."""

    what: str
    account: int | None


class OwnersDiffer(Exception):
    """Pieces of one request belong to different accounts. `owners` says which piece belongs to which."""

    def __init__(self, owners: Mapping[str, int]) -> None:
        super().__init__(", ".join(owners))
        self.owners = owners


def agreed_owner(pieces: Iterable[Piece], tied: int | None) -> int | None:
    """The one account that all pieces belong to, None when that is not known of any.

    A piece that nobody has seen is taken to be of `tied`, the account that the conversation is tied to by its name;
    a conversation's name proves nothing where every piece is known. Raises `OwnersDiffer`: no piece has precedence.
    """
    owners: dict[str, int] = {}
    for piece in pieces:
        account = tied if piece.account is None else piece.account
        if account is not None:
            owners.setdefault(f"{piece.what} of account {account}", account)
    if len(set(owners.values())) > 1:
        raise OwnersDiffer(owners)
    return next(iter(owners.values()), None)


# Percent of its fullest usage window from which an account is pressed, and below which another one is clearly better.
PRESSED = 95.0
CLEARLY_BETTER = 80.0


def is_clearly_better(used: float | None) -> bool:
    """Whether an account with `used` percent used has room enough to take over from a pressed one."""
    return (used or 0.0) < CLEARLY_BETTER


def stays(used: float | None, others: Iterable[float | None]) -> bool:
    """Whether a soft tie holds its account, of which `used` percent are used, with `others` as they are.

    Unknown usage counts as none. Where all are pressed alike moving would gain nothing and lose the prompt cache.
    """
    return (used or 0.0) < PRESSED or not any(map(is_clearly_better, others))
