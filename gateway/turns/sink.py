"""Where a turn's answer goes, as the engine sees it. `gateway/consumers/` implements it for each transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from gateway.protocol.events import Event
from gateway.turns.answers import Answer


class Sink(Protocol):
    """One turn's way to its client. Only the turn's task calls what may wait for the client.

    A send after the client left raises `ClientLost`.
    """

    def upstream_headers(self, headers: Mapping[str, str]) -> None:
        """The upstream's headers, before its first event; some belong in our own."""

    async def deliver(self, events: Sequence[Event]) -> None:
        """Give the client these events, in order; the last one may be terminal, and nothing follows it."""

    def pass_on(self, events: Sequence[Event]) -> bool:
        """Give the client plain events without waiting for it; False, and nothing was given, if they need `deliver`.

        Called between two deliveries, also from outside the turn's task.
        """

    async def refuse(self, answer: Answer) -> None:
        """Tell the client why there is no (further) answer; nothing follows it."""

    def tick(self, now: float) -> float:
        """Keep a silent client informed and notice a stalled one; the seconds until the next call is due.

        Called from a timer: it must not wait. Raises `ClientLost` when the client has taken nothing for too long.
        """

    async def end_silence(self) -> None:
        """Stop keepalives for good; returns when one that was being sent is out."""
