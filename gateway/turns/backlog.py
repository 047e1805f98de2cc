"""What clients have not taken yet, bounded for each and for all: the lanes behind them are never paused."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from gateway.errors import ClientLost

# The total is looked at when a backlog has grown by this much since the last look; smaller ones cannot matter.
STEP = 1024 * 1024


class Behind(Protocol):
    """A turn whose client may have fallen behind."""

    def backlog(self) -> int:
        """Bytes that wait for its client."""

    def abort(self, error: ClientLost) -> None:
        """End it."""


class Backlogs:
    """Cuts the client that outgrows its `share`, and the one that is furthest behind when all outgrow `total`."""

    def __init__(self, share: int, total: int, running: Collection[Behind]) -> None:
        self._share = share
        self._total = total
        self._running = running

    def grew(self, turn: Behind, size: int, looked_at: int) -> int:
        """`turn` has `size` bytes waiting. Returns the size to give as `looked_at` the next time."""
        if size > self._share:
            turn.abort(too_slow("GATEWAY_CLIENT_BUFFER_BYTES"))
        elif size - looked_at >= STEP:
            if sum(each.backlog() for each in self._running) > self._total:
                furthest = max(self._running, key=lambda each: each.backlog())
                furthest.abort(too_slow("GATEWAY_CLIENT_BUFFER_TOTAL"))
            return size
        return min(looked_at, size)


def too_slow(limit: str) -> ClientLost:
    return ClientLost(f"The client has fallen behind by more than {limit} allows.", code="client_too_slow")
