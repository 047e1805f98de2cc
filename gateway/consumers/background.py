"""Responses in the background: the client may leave, on either transport, and the turn goes on to its end.

The account runs such a response whoever listens. The gateway listens all the same, so that the turn holds its place
for as long as the work lasts, and its usage reaches the ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence

from gateway.clock import Clock
from gateway.consumers.render import broken_off, document
from gateway.consumers.wire import ClientWire, send_document, shown
from gateway.errors import ClientLost
from gateway.protocol.events import Event, Kind
from gateway.protocol.members import members_of
from gateway.turns.answers import Answer
from gateway.turns.sink import Sink

# Seconds; nothing has to be checked any more for a client that is gone.
NEVER = 3600.0


class BackgroundSink:
    """Gives a client what it takes, and lets the turn go on when it takes no more."""

    def __init__(self, inner: Sink) -> None:
        self._inner = inner
        self._left = False
        self._sending: asyncio.Timeout | None = None

    def upstream_headers(self, headers: Mapping[str, str]) -> None:
        self._inner.upstream_headers(headers)

    async def deliver(self, events: Sequence[Event]) -> None:
        if not self._left:
            await self._while_there(self._inner.deliver(events))

    def pass_on(self, events: Sequence[Event]) -> bool:
        return self._left or self._inner.pass_on(events)

    async def refuse(self, answer: Answer) -> None:
        if not self._left:
            await self._while_there(self._inner.refuse(answer))

    def tick(self, now: float) -> float:
        if not self._left:
            try:
                return self._inner.tick(now)
            except ClientLost:
                self._give_up()
        return NEVER

    async def end_silence(self) -> None:
        await self._while_there(self._inner.end_silence())

    async def _while_there(self, sending: Awaitable[None]) -> None:
        self._sending = asyncio.timeout(0 if self._left else None)
        try:
            async with self._sending:
                await sending
        except (ClientLost, TimeoutError):
            self._left = True
        finally:
            self._sending = None

    def _give_up(self) -> None:
        """The client takes nothing: what is being sent must not hold the turn up either."""
        self._left = True
        if self._sending is not None:
            self._sending.reschedule(asyncio.get_running_loop().time())


class FirstStateSink:
    """Answers with the response as it is when it begins, for a client that will ask for it later."""

    def __init__(self, wire: ClientWire, clock: Clock) -> None:
        self._wire = wire
        self._clock = clock
        self._headers: dict[str, str] = {}
        self._answered = False

    def upstream_headers(self, headers: Mapping[str, str]) -> None:
        self._headers.update(shown(headers))

    async def deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            if self._answered:
                return
            response = members_of(event.data).get("response")
            if event.kind is Kind.ERROR:
                await self.refuse(broken_off(event, self._clock.wall()))
            elif response is not None and members_of(response):
                await self._answer(200, bytes(response), {})

    def pass_on(self, events: Sequence[Event]) -> bool:
        return self._answered

    async def refuse(self, answer: Answer) -> None:
        if not self._answered:
            await self._answer(answer.status, document(answer), answer.headers)

    async def _answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self._answered = True
        await send_document(self._wire, status, body, self._headers | dict(headers))

    def tick(self, now: float) -> float:
        return self._wire.check(now)

    async def end_silence(self) -> None:
        """A document has no silence to break."""
