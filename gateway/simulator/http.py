"""HTTP/1.1 with h11: responses, models, control, and the way to a WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qs

import h11

from gateway.simulator.accounts import limit_headers
from gateway.simulator.archive import Timed
from gateway.simulator.backend import Answer, Backend, Request
from gateway.simulator.catalogue import catalogue, openai_list, wants_catalogue
from gateway.simulator.control import CONTROL_PATH, control
from gateway.simulator.issuer import PATHS
from gateway.simulator.observed import RequestRecord
from gateway.simulator.operations import is_operation, operate
from gateway.simulator.plan import Outcome, Send
from gateway.simulator.refusal import Refusal, Refused
from gateway.simulator.runner import run
from gateway.simulator.sse import JsonCarrier, SseCarrier
from gateway.simulator.values import encode
from gateway.simulator.wire import Receiver, Wire

BODY_LIMIT = 256 * 1024 * 1024
# Access tokens and turn metadata are long.
HEAD_LIMIT = 128 * 1024


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a request; header names in lower case. `raw_headers` are as they came."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    raw_headers: list[tuple[bytes, bytes]]

    @property
    def upgrades(self) -> bool:
        return self.method == "GET" and self.headers.get("upgrade", "").lower() == "websocket"


class Upgrade(Protocol):
    """Takes a connection over from HTTP; `trailing` are the bytes that came after the head."""

    def __call__(self, http: HttpConnection, head: Head, trailing: bytes) -> Receiver: ...


class HttpConnection:
    """One connection as long as it speaks HTTP. It answers one request after the other."""

    def __init__(self, wire: Wire, number: int, backend: Backend, upgrade: Upgrade) -> None:
        self.wire = wire
        self.number = number
        self._backend = backend
        self._upgrade = upgrade
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_LIMIT)
        self._head: Head | None = None
        self._body: list[bytes] = []
        self._size = 0
        self._record: RequestRecord | None = None

    def received(self, data: bytes) -> None:
        self._h11.receive_data(data)
        self._advance()

    def lost(self) -> None:
        if self._record is not None:
            self._backend.left(self._record)

    def send(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        data = self._h11.send(event)
        if data:
            self.wire.write(data)

    def respond(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Send one whole JSON answer."""
        fields = {"content-type": "application/json", "content-length": str(len(body)), **headers}
        self.send(h11.Response(status_code=status, headers=list(fields.items())))
        if self._head is None or self._head.method != "HEAD":
            self.send(h11.Data(data=body))
        self.send(h11.EndOfMessage())

    def refuse(self, refusal: Refusal) -> None:
        self.respond(refusal.status, refusal.body(), refusal.headers)

    def finished(self) -> None:
        """The answer is complete: take the next request, or close where HTTP says so."""
        self._record = None
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
            self._advance()
        elif self._h11.our_state in (h11.MUST_CLOSE, h11.CLOSED, h11.DONE):
            self.wire.close()

    def _advance(self) -> None:
        while not self.wire.lost:
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                self._reject(error)
                return
            if isinstance(event, h11.Request):
                self._start(event)
            elif isinstance(event, h11.Data):
                self._collect(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                self._serve()
                return
            else:
                return

    def _reject(self, error: h11.RemoteProtocolError) -> None:
        if self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.refuse(Refusal(error.error_status_hint, f"The request is not valid HTTP: {error}."))
        self.wire.close()

    def _start(self, request: h11.Request) -> None:
        path, _, query = request.target.decode("latin-1").partition("?")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        self._head = Head(request.method.decode(), path, query, headers, request.headers.raw_items())
        self._body, self._size = [], 0
        if self._h11.they_are_waiting_for_100_continue:
            self.wire.write(self._h11.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")

    def _collect(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= BODY_LIMIT:
            self._body.append(data)

    def _serve(self) -> None:
        head = self._head
        assert head is not None  # noqa: S101  # h11 ends no message that has not begun
        body = b"".join(self._body)
        self._body = []
        if head.upgrades and head.path.endswith("/responses"):
            self.wire.receiver = self._upgrade(self, head, self._h11.trailing_data[0])
            return
        try:
            if self._size > BODY_LIMIT:
                raise Refused(Refusal(413, f"The body is larger than {BODY_LIMIT} bytes."))
            self._route(head, body)
        except Refused as error:
            self.refuse(error.refusal)
        if self._record is None:
            self.finished()

    def _route(self, head: Head, body: bytes) -> None:
        if head.path.startswith(CONTROL_PATH):
            status, answer = control(self._backend, head.method, head.path, body)
            self.respond(status, encode(answer), {})
        elif head.path.startswith(PATHS):
            status, answer = self._backend.issuer.answer(head.method, head.path, body)
            self.respond(status, encode(answer), {})
        elif head.path.endswith("/responses") and head.method == "POST":
            self._begin_turn(head, body)
        elif is_operation(head.method, head.path):
            self._operate(head, body)
        elif "/responses/" in head.path:
            self._stored(head)
        elif head.path.endswith("/models") and head.method == "GET":
            self._models(head)
        else:
            message = f"There is nothing at {head.method} {head.path}."
            raise Refused(Refusal(404, message, code="not_found"))

    def _stored(self, head: Head) -> None:
        """A stored response; a call that needs no turn."""
        account, record = self._backend.admit(self.number, head.path, head.headers)
        query = {name: values[-1] for name, values in parse_qs(head.query).items()}
        path = head.path.partition("/responses/")[2]
        try:
            if head.method == "GET" and query.get("stream") == "true":
                timed = self._backend.archive.stream(account.name, path, query, self._backend.clock.wall())
                self._record = record
                self.wire.spawn(self._listened(timed, record))
                return
            answer = self._backend.archive.call(account.name, head.method, path, query, self._backend.clock.wall())
        except Refused as error:
            record.status, record.code = error.refusal.status, error.refusal.code
            self._backend.observed.ended(record, Outcome.REFUSED)
            raise
        self._backend.observed.ended(record, Outcome.COMPLETED)
        self.respond(200, encode(answer), {})

    async def _listened(self, events: Sequence[Timed], record: RequestRecord) -> None:
        """Say the events of a stored response, each when it comes."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        carrier = SseCarrier(self, {}, lambda: self._backend.observed.sent(record))
        carrier.begin()
        for event in events:
            await asyncio.sleep(max(0.0, began + event.seconds - loop.time()))
            carrier.send(Send(event.type, event.payload))
            await self.wire.drain()
        carrier.end()
        self._backend.observed.ended(record, Outcome.COMPLETED)
        self.finished()

    def _operate(self, head: Head, body: bytes) -> None:
        backend = self._backend
        account, record = backend.admit(self.number, head.path, head.headers)
        try:
            account.check_limit(backend.clock.wall())
            answer = operate(head.method, head.path, body, account.name, backend.files)
        except Refused as error:
            record.status, record.code = error.refusal.status, error.refusal.code
            backend.observed.ended(record, Outcome.REFUSED)
            raise
        backend.observed.ended(record, Outcome.COMPLETED)
        self.respond(200, encode(answer), limit_headers(account, backend.clock.wall()))

    def _models(self, head: Head) -> None:
        self._backend.identify(head.headers)
        if wants_catalogue(head.path, head.query):
            models, etag = catalogue()
            self.respond(200, models, {"etag": etag})
        else:
            self.respond(200, openai_list(), {})

    def _begin_turn(self, head: Head, body: bytes) -> None:
        account, record = self._backend.admit(self.number, head.path, head.headers)
        request = Request(account, "http", head.path, head.headers, body)
        self._record = record
        self.wire.spawn(self._turn(request, self._backend.answer(request, record), record))

    async def _turn(self, request: Request, answer: Answer, record: RequestRecord) -> None:
        backend = self._backend
        headers = limit_headers(request.account, backend.clock.wall()) | {"openai-model": _header_text(answer.model)}
        if answer.turn_state is not None:
            headers["x-codex-turn-state"] = answer.turn_state
        carrier = (SseCarrier if answer.stream else JsonCarrier)(self, headers, lambda: backend.observed.sent(record))
        await run(answer.plan.steps, carrier, answer.plan.interval, lambda: backend.remember(request, answer))
        backend.observed.ended(record, answer.plan.outcome)
        self.finished()


def _header_text(value: str) -> str:
    """`value` as a header can hold it: a client may name a model as it likes."""
    return "".join(mark if mark.isascii() and mark.isprintable() else "?" for mark in value).strip()
