"""Which account each conversation of this process lives on."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from gateway.continuity.rules import SessionKey, Strength

MAX_SESSIONS = 100_000


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation's account, how strongly they are tied, and when it was last used (monotonic seconds)."""

    account_id: int
    strength: Strength
    used_at: float


class SessionTable:
    """Sessions in memory, the least recently used dropped beyond `MAX_SESSIONS`."""

    def __init__(self, soft_ttl: float) -> None:
        self._soft_ttl = soft_ttl
        self._sessions: OrderedDict[SessionKey, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, key: SessionKey, now: float) -> Session | None:
        """The session of `key`; a soft one is forgotten after its time to live."""
        session = self._sessions.get(key)
        if session is None:
            return None
        if session.strength is Strength.SOFT and now - session.used_at > self._soft_ttl:
            del self._sessions[key]
            return None
        return session

    def bind(self, key: SessionKey, account_id: int, strength: Strength, now: float) -> None:
        """The conversation was carried by `account_id`; a hard tie to the same account is never weakened."""
        known = self._sessions.get(key)
        if known is not None and known.account_id == account_id and known.strength is Strength.HARD:
            strength = Strength.HARD
        self._sessions[key] = Session(account_id, strength, now)
        self._sessions.move_to_end(key)
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
