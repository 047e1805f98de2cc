"""Which account each conversation lives on: in memory for routing, and what of it has to be written down."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gateway.continuity.rules import SessionKey, Strength

MAX_SESSIONS = 100_000
# A session that is only used again is written at most so often within its time to live.
WRITES_PER_TTL = 4


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation's account, how strongly they are tied, and when it was last used (unix seconds).

    `left_behind` are the fingerprints of encrypted content that an earlier account made and the present one may not
    get: the client goes on sending it with its history.
    """

    key: SessionKey
    account_id: int
    strength: Strength
    used_at: float
    left_behind: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Departure:
    """A conversation leaves the account it is tied to: `before` becomes `after`.

    It may, if `before` is still what is stored and its account cannot be used before `not_before` (unix seconds).
    """

    before: Session
    after: Session
    not_before: float


class SessionTable:
    """The sessions that routing knows; the least recently used are dropped beyond `MAX_SESSIONS`."""

    def __init__(self, soft_ttl: float) -> None:
        self._soft_ttl = soft_ttl
        self._sessions: OrderedDict[SessionKey, Session] = OrderedDict()
        self._written: dict[SessionKey, float] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, key: SessionKey, now: float) -> Session | None:
        """The session of `key`; a soft one is forgotten after its time to live."""
        session = self._sessions.get(key)
        if session is None:
            return None
        if session.strength is Strength.SOFT and now - session.used_at > self._soft_ttl:
            self._drop(key)
            return None
        return session

    def bind(self, key: SessionKey, account_id: int, strength: Strength, now: float) -> Session | None:
        """The conversation goes to `account_id`; a hard tie to the same account is never weakened.

        Returns the session when it has to be written down: it is new or changed, or was not written for long.
        """
        known = self._sessions.get(key)
        if strength is Strength.SOFT and known is not None and known.account_id == account_id:
            strength = known.strength
        session = Session(key, account_id, strength, now, known.left_behind if known is not None else frozenset())
        self._put(session)
        same = known is not None and replace(known, used_at=now) == session
        if same and now - self._written.get(key, 0.0) < self._soft_ttl / WRITES_PER_TTL:
            return None
        self._written[key] = now
        return session

    def learn(self, sessions: Iterable[Session]) -> None:
        """Take over what the store holds; a session that was used here later than there stays as it is."""
        for session in sessions:
            known = self._sessions.get(session.key)
            if known is None or known.used_at <= session.used_at:
                self._put(session)
                self._written[session.key] = session.used_at

    def replace(self, session: Session) -> None:
        """The session is stored like this, whatever was known of it here."""
        self._put(session)
        self._written[session.key] = session.used_at

    def forget(self, keys: Iterable[SessionKey]) -> None:
        """These sessions are gone."""
        for key in keys:
            self._drop(key)

    def _put(self, session: Session) -> None:
        self._sessions[session.key] = session
        self._sessions.move_to_end(session.key)
        while len(self._sessions) > MAX_SESSIONS:
            self._drop(next(iter(self._sessions)))

    def _drop(self, key: SessionKey) -> None:
        self._sessions.pop(key, None)
        self._written.pop(key, None)
