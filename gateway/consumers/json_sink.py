"""A turn's answer as one JSON document, for `stream: false`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.clock import Clock
from gateway.consumers.render import broken_off, document
from gateway.consumers.wire import ClientWire, send_document, shown
from gateway.errors import UpstreamLost
from gateway.protocol.events import Event, Kind, item_of_done, join_output, response_of_terminal
from gateway.turns.answers import Answer, answer
from gateway.turns.request import Route


class JsonSink:
    """One JSON document: the response object of the terminal event."""

    def __init__(self, wire: ClientWire, clock: Clock) -> None:
        self._wire = wire
        self._clock = clock
        self._headers: dict[str, str] = {}
        self._items: list[bytes] = []

    def upstream_headers(self, headers: Mapping[str, str]) -> None:
        self._headers.update(shown(headers))

    async def deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.type == "response.output_item.done":
                self._items.append(item_of_done(event))
        last = events[-1] if events else None
        if last is not None and last.kind is Kind.TERMINAL:
            await self._send_response(last)
        elif last is not None and last.kind is Kind.ERROR:
            told = broken_off(last, self._clock.wall())
            await send_document(self._wire, told.status, document(told), self._headers)

    async def _send_response(self, terminal: Event) -> None:
        try:
            body = join_output(response_of_terminal(terminal), self._items)
        except UpstreamLost as error:
            await self.refuse(answer(error, Route.V1))
        else:
            await send_document(self._wire, 200, body, self._headers)

    async def refuse(self, answer: Answer) -> None:
        await send_document(self._wire, answer.status, document(answer), self._headers | dict(answer.headers))

    def tick(self, now: float) -> float:
        return self._wire.check(now)

    async def end_silence(self) -> None:
        """A document has no silence to break."""
