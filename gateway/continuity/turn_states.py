"""Which account issued which turn state, so that no other account is shown it."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

MAX_TURN_STATES = 50_000


class TurnStates:
    """The newest turn states of this process, as digests, with the account that issued each."""

    def __init__(self) -> None:
        self._issuers: OrderedDict[bytes, int] = OrderedDict()

    def issued(self, turn_state: str, account_id: int) -> None:
        """`account_id` has given a client this turn state."""
        digest = _digest(turn_state)
        self._issuers[digest] = account_id
        self._issuers.move_to_end(digest)
        if len(self._issuers) > MAX_TURN_STATES:
            self._issuers.popitem(last=False)

    def issuer(self, turn_state: str) -> int | None:
        """The account that issued it, if that was seen here."""
        return self._issuers.get(_digest(turn_state))


def _digest(turn_state: str) -> bytes:
    return hashlib.sha256(turn_state.encode()).digest()
