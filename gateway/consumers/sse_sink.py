"""A turn's answer as a stream of server-sent events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from gateway.conf import Tunables
from gateway.consumers.wire import ClientWire, Keepalive, send_document, shown
from gateway.protocol.events import ENDS, Event, Kind, read_metadata_headers, read_rate_limits
from gateway.protocol.sse import encode_event
from gateway.turns.answers import Answer


class Rendering(Protocol):
    """What the events of one turn look like to its client.

    `keepalive` breaks a silence and means nothing. With `verbatim` plain events keep their bytes.
    """

    keepalive: bytes
    verbatim: bool

    def write(self, events: Sequence[Event]) -> bytes:
        """The bytes for these events, which may be none."""

    def refuse(self, answer: Answer) -> bytes:
        """The last bytes of a stream that has begun and cannot go on."""

    def document(self, answer: Answer) -> bytes:
        """The body of an error answer, for a stream that has not begun."""


class SseSink:
    """A stream of server-sent events. Headers wait for the first real event, so that a refusal has a real status."""

    def __init__(self, wire: ClientWire, rendering: Rendering, tunables: Tunables) -> None:
        self._wire = wire
        self._rendering = rendering
        self._header_wait = tunables.header_wait
        self._created_at = wire.sent_at
        self._keepalive_interval = tunables.keepalive_interval
        self._keepalive = Keepalive(wire, self._keepalive_interval)
        self._headers: dict[str, str] = {}
        self._held: list[Event] = []
        self._begun = False

    def upstream_headers(self, headers: Mapping[str, str]) -> None:
        self._headers.update(shown(headers))

    async def deliver(self, events: Sequence[Event]) -> None:
        if self._keepalive.sending is not None:
            await self._keepalive.wait()
        if not self._begun:
            events = self._hold(events)
            if not events:
                return
            await self._begin()
        chunk = self._rendering.write(events)
        last = events[-1].kind in ENDS
        if chunk or last:
            await self._wire.send({"type": "http.response.body", "body": chunk, "more_body": not last})

    def pass_on(self, events: Sequence[Event]) -> bool:
        if not self._begun or not self._rendering.verbatim or self._keepalive.sending is not None:
            return False
        return self._wire.write([event.raw or encode_event(event) for event in events])

    async def refuse(self, answer: Answer) -> None:
        await self._keepalive.end()
        if self._begun:
            body = self._rendering.refuse(answer)
            await self._wire.send({"type": "http.response.body", "body": body, "more_body": False})
        else:
            document = self._rendering.document(answer)
            await send_document(self._wire, answer.status, document, self._headers | dict(answer.headers))

    async def finish(self) -> None:
        """End the stream without a terminal event."""
        await self._keepalive.end()
        if not self._begun:
            await self._begin()
        await self._wire.send({"type": "http.response.body", "body": b"", "more_body": False})

    def tick(self, now: float) -> float:
        due = self._wire.check(now)
        if self._begun:
            return min(due, self._keepalive.check(now, self._send_keepalive))
        left = self._created_at + self._header_wait - now
        if left > 0:
            # The stream may begin at any time, and its silences count from then on.
            return min(due, left, self._keepalive_interval)
        return min(due, self._keepalive.check(now, self._break_silence))

    async def end_silence(self) -> None:
        await self._keepalive.end()

    def _hold(self, events: Sequence[Event]) -> Sequence[Event]:
        """Before the headers are out, metadata becomes headers; returns everything once there is a real event."""
        for event in events:
            if event.kind is Kind.METADATA:
                self._headers.update(
                    read_rate_limits(event)
                    if event.type == "codex.rate_limits"
                    else shown(read_metadata_headers(event))
                )
        self._held.extend(events)
        if all(event.kind is Kind.METADATA for event in events):
            return ()
        held, self._held = self._held, []
        return held

    async def _begin(self) -> None:
        self._begun = True
        headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in self._headers.items()]
        headers += [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await self._wire.send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _break_silence(self) -> None:
        await self._begin()
        held, self._held = self._held, []
        await self._send_keepalive(held)

    async def _send_keepalive(self, held: Sequence[Event] = ()) -> None:
        chunk = self._rendering.write(held) + self._rendering.keepalive
        await self._wire.send({"type": "http.response.body", "body": chunk, "more_body": True})
