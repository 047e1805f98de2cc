"""A response as its client gets it where nothing is translated: every event with the bytes that it came with."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.clock import Clock
from gateway.consumers.render import broken_off, document, failed
from gateway.protocol.events import Event, Kind, join_output, read_created, response_of_terminal
from gateway.protocol.sse import KEEPALIVE_COMMENT, KEEPALIVE_EVENT, encode_event
from gateway.protocol.wire import error_event
from gateway.turns.answers import Answer
from gateway.turns.request import Route


class NativeStream:
    """The events of one turn, by the conventions of its route."""

    verbatim = True

    def __init__(self, route: Route, clock: Clock) -> None:
        # A comment does not reset the Codex client's idle timer; a data event it does not know does.
        self.keepalive = KEEPALIVE_EVENT if route is Route.CODEX else KEEPALIVE_COMMENT
        self._route = route
        self._clock = clock
        self._response_id: str | None = None

    def write(self, events: Sequence[Event]) -> bytes:
        if len(events) == 1 and events[0].kind is Kind.OTHER:
            # Nearly every delivery: one event, or one run of them, that only has to be passed on.
            return events[0].raw or encode_event(events[0])
        if self._response_id is None:
            self._response_id = next((read_created(event) for event in events if event.kind is Kind.CREATED), None)
        chunk = b"".join([encode_event(event) for event in events if self._passes(event)])
        if events and events[-1].kind is Kind.ERROR and self._route is Route.CODEX:
            # That client does not know `error` events on SSE and would wait for more.
            chunk += self.refuse(broken_off(events[-1], self._clock.wall()))
        return chunk

    def refuse(self, answer: Answer) -> bytes:
        return encode_event(failed(answer, self._response_id, self._clock.wall()))

    def document(self, answer: Answer) -> bytes:
        return document(answer)

    def _passes(self, event: Event) -> bool:
        if event.kind is Kind.OTHER or event.kind is Kind.ITEM:
            return True
        if event.kind is Kind.METADATA:
            return self._route is Route.CODEX or not event.type.startswith("codex.")
        return event.kind is not Kind.ERROR or self._route is not Route.CODEX


class StoredStream(NativeStream):
    """The events of a stored response. That listening to it has failed does not mean that the response has."""

    def refuse(self, answer: Answer) -> bytes:
        return encode_event(error_event(answer.code or answer.type, answer.message, answer.param))


class NativeDocument:
    """The response object of the terminal event, its output filled where it came empty."""

    def write(self, terminal: Event, items: Sequence[bytes]) -> bytes | Answer:
        return join_output(response_of_terminal(terminal), items)

    def document(self, answer: Answer) -> bytes:
        return document(answer)
