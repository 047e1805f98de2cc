"""A turn's answer as one JSON document, for `stream: false`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from gateway.clock import Clock
from gateway.consumers.render import broken_off
from gateway.consumers.wire import ClientWire, send_document, shown
from gateway.errors import UpstreamError
from gateway.protocol.events import Event, Kind, item_of_done
from gateway.turns.answers import Answer, answer
from gateway.turns.request import Route


class Rendering(Protocol):
    """What a whole response looks like to its client."""

    def write(self, terminal: Event, items: Sequence[bytes]) -> bytes | Answer:
        """The document for a response that has ended, or why there is none; `items` are its output.

        Raises `UpstreamError`.
        """

    def document(self, answer: Answer) -> bytes:
        """The body of an error answer."""


class JsonSink:
    """One JSON document, made when the response has ended."""

    def __init__(self, wire: ClientWire, rendering: Rendering, clock: Clock) -> None:
        self._wire = wire
        self._rendering = rendering
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
            await self.refuse(broken_off(last, self._clock.wall()))

    async def _send_response(self, terminal: Event) -> None:
        try:
            body = self._rendering.write(terminal, self._items)
        except UpstreamError as error:
            body = answer(error, Route.V1)
        if isinstance(body, Answer):
            await self.refuse(body)
        else:
            await send_document(self._wire, 200, body, self._headers)

    def pass_on(self, events: Sequence[Event]) -> bool:
        # The document holds nothing of them.
        return True

    async def refuse(self, answer: Answer) -> None:
        document = self._rendering.document(answer)
        await send_document(self._wire, answer.status, document, self._headers | dict(answer.headers))

    def tick(self, now: float) -> float:
        return self._wire.check(now)

    async def end_silence(self) -> None:
        """A document has no silence to break."""
