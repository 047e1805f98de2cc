"""A turn's answer as a stream of server-sent events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.consumers.render import broken_off, document, failed
from gateway.consumers.wire import ClientWire, Keepalive, send_document, shown
from gateway.protocol.events import (
    Event,
    Kind,
    read_created,
    read_metadata_headers,
    read_rate_limits,
)
from gateway.protocol.sse import KEEPALIVE_COMMENT, KEEPALIVE_EVENT, encode_event
from gateway.turns.answers import Answer
from gateway.turns.request import Route


class SseSink:
    """A stream of server-sent events. Headers wait for the first real event, so that a refusal has a real status."""

    def __init__(self, wire: ClientWire, route: Route, tunables: Tunables, clock: Clock) -> None:
        self._wire = wire
        self._route = route
        self._clock = clock
        self._header_wait = tunables.header_wait
        self._created_at = wire.sent_at
        self._keepalive_interval = tunables.keepalive_interval
        self._keepalive = Keepalive(wire, self._keepalive_interval)
        self._headers: dict[str, str] = {}
        self._held: list[Event] = []
        self._begun = False
        self._response_id: str | None = None

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
        if len(events) == 1 and events[0].kind is Kind.OTHER:
            # Nearly every delivery: one event, or one run of them, that only has to be passed on.
            body = events[0].raw or encode_event(events[0])
            await self._wire.send({"type": "http.response.body", "body": body, "more_body": True})
            return
        await self._write(events)

    async def refuse(self, answer: Answer) -> None:
        await self._keepalive.end()
        if self._begun:
            await self._write([failed(answer, self._response_id, self._clock.wall())])
        else:
            await send_document(self._wire, answer.status, document(answer), self._headers | dict(answer.headers))

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

    async def _write(self, events: Sequence[Event]) -> None:
        if self._response_id is None:
            self._response_id = next((read_created(event) for event in events if event.kind is Kind.CREATED), None)
        last = events[-1].kind in (Kind.TERMINAL, Kind.ERROR)
        chunk = b"".join([encode_event(event) for event in events if self._passes(event)])
        if last and events[-1].kind is Kind.ERROR and self._route is Route.CODEX:
            # That client does not know `error` events on SSE and would wait for more.
            now = self._clock.wall()
            chunk += encode_event(failed(broken_off(events[-1], now), self._response_id, now))
        if chunk or last:
            await self._wire.send({"type": "http.response.body", "body": chunk, "more_body": not last})

    def _passes(self, event: Event) -> bool:
        if event.kind is Kind.OTHER or event.kind is Kind.ITEM:
            return True
        if event.kind is Kind.METADATA:
            return self._route is Route.CODEX or not event.type.startswith("codex.")
        return event.kind is not Kind.ERROR or self._route is not Route.CODEX

    async def _break_silence(self) -> None:
        await self._begin()
        held, self._held = self._held, []
        await self._send_keepalive(held)

    async def _send_keepalive(self, held: Sequence[Event] = ()) -> None:
        # A comment does not reset the Codex client's idle timer; a data event it does not know does.
        keepalive = KEEPALIVE_EVENT if self._route is Route.CODEX else KEEPALIVE_COMMENT
        chunk = b"".join([encode_event(event) for event in held if self._passes(event)]) + keepalive
        await self._wire.send({"type": "http.response.body", "body": chunk, "more_body": True})
