"""What is passed through to an account besides responses: one request, one document, accounted for like any turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gateway.consumers.base import Gate
from gateway.consumers.http import ResponsesHttp
from gateway.consumers.render import document
from gateway.consumers.wire import ClientWire, send_document, shown
from gateway.keys import KeySnapshot
from gateway.protocol.body import Body, opaque_body, parse_body
from gateway.protocol.events import Event
from gateway.turns.answers import Answer
from gateway.turns.names import Named
from gateway.turns.operations import Operation
from gateway.turns.request import Downstream, Route
from gateway.turns.sink import Sink


class UnaryHttp(ResponsesHttp):
    """One request for one operation."""

    def __init__(self, gate: Callable[[], Gate], route: Route, operation: Operation) -> None:
        super().__init__(gate, route)
        self.operation = operation

    def read(self, raw: bytes) -> Body:
        """JSON is read as what it is; anything else, such as an uploaded file, is only carried."""
        if self.operation is not None and self.operation.resource:
            return opaque_body(raw, self.operation.resource)
        is_json = dict(self.headers).get("content-type", "").partition(";")[0].strip().lower() == "application/json"
        return parse_body(raw) if is_json and raw else opaque_body(raw)

    def named(self, key: KeySnapshot, body: Body) -> Named:
        if self.operation is not None and not self.operation.names_model:
            return Named(body, "")
        return super().named(key, body)

    def answer_with(self, body: Body) -> tuple[Downstream, Sink]:
        return Downstream.JSON, DocumentSink(self.wire)


class DocumentSink:
    """An upstream's document as it came, with its type."""

    def __init__(self, wire: ClientWire) -> None:
        self._wire = wire
        self._headers: dict[str, str] = {}
        self._type = "application/json"

    def upstream_headers(self, headers: Mapping[str, str]) -> None:
        self._headers.update(shown(headers))
        self._type = headers.get("content-type", self._type)

    async def deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            await send_document(self._wire, 200, event.data, self._headers, self._type)

    def pass_on(self, events: Sequence[Event]) -> bool:
        # There is but one event, and it is terminal.
        return False

    async def refuse(self, answer: Answer) -> None:
        await send_document(self._wire, answer.status, document(answer), self._headers | dict(answer.headers))

    def tick(self, now: float) -> float:
        return self._wire.check(now)

    async def end_silence(self) -> None:
        """A document has no silence to break."""
