"""A turn's answer as frames on the client's WebSocket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.consumers.render import failed, frame
from gateway.consumers.wire import ClientWire, Keepalive
from gateway.protocol.events import Event, Kind, has_sequence_number
from gateway.turns.answers import Answer
from gateway.turns.request import Route

KEEPALIVE_FRAME = b'{"type":"keepalive"}'


class WebSocketSink:
    """One turn's frames on a client's WebSocket. `must_close` is set when only a close can end the turn."""

    def __init__(self, wire: ClientWire, route: Route, tunables: Tunables, clock: Clock) -> None:
        self.must_close = False
        self._wire = wire
        self._route = route
        self._clock = clock
        self._keepalive = Keepalive(wire, tunables.keepalive_interval)
        self._sequenced = False

    def upstream_headers(self, headers: Mapping[str, str]) -> None:
        """Lanes bring their metadata as events, which pass as they come."""

    async def deliver(self, events: Sequence[Event]) -> None:
        # One that is broken off may have left the terminal event out, and then nothing but a close ends the turn.
        self.must_close = True
        if self._keepalive.sending is not None:
            await self._keepalive.wait()
        for event in events:
            if event.kind is Kind.METADATA and self._route is Route.V1 and event.type.startswith("codex."):
                continue
            if not self._sequenced:
                self._sequenced = has_sequence_number(event.data)
            await self._send(event.data)
        self.must_close = False

    def pass_on(self, events: Sequence[Event]) -> bool:
        if not self._sequenced or self._keepalive.sending is not None:
            return False
        texts = [event.data for event in events]
        return self._wire.write([text if text.isascii() else _valid(text) for text in texts])

    async def refuse(self, answer: Answer) -> None:
        # Also when the client does not take the answer in time.
        self.must_close = True
        await self._keepalive.end()
        if self._sequenced:
            # A made-up event has no place in a numbered sequence; the close tells the client to start over.
            return
        await self._send(failed(answer, None, self._clock.wall()).data if answer.lost else frame(answer))
        self.must_close = False

    def tick(self, now: float) -> float:
        due = self._wire.check(now)
        if self._route is not Route.CODEX:
            return due
        return min(due, self._keepalive.check(now, lambda: self._send(KEEPALIVE_FRAME)))

    async def end_silence(self) -> None:
        await self._keepalive.end()

    async def _send(self, data: bytes) -> None:
        await self._wire.send({"type": "websocket.send", "text": data.decode("utf-8", "replace")})


def _valid(text: bytes) -> bytes:
    """`text` as UTF-8, which nobody has checked so far."""
    return text.decode("utf-8", "replace").encode()
