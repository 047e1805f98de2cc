"""WebSockets (RFC 6455) on the sans-I/O core of the `websockets` library, one response at a time on each.

`WebSocketConnection` says what belongs to the socket, its handshake and what happens while it is idle;
`WebSocketTurn` says one response.
"""

from __future__ import annotations

import asyncio

from websockets.datastructures import Headers
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request as HandshakeRequest
from websockets.protocol import SEND_EOF, State
from websockets.server import ServerProtocol

from gateway.simulator.accounts import SimulatedAccount, limit_event
from gateway.simulator.backend import Answer, Backend, Request
from gateway.simulator.http import Head, HttpConnection
from gateway.simulator.observed import Origin, RequestRecord
from gateway.simulator.plan import Send
from gateway.simulator.refusal import Refusal, Refused, invalid
from gateway.simulator.rules import SocketMemory
from gateway.simulator.runner import run
from gateway.simulator.values import Json, encode

# A message of 16 MiB or more is answered with close 1009.
MAX_MESSAGE = 16 * 1024 * 1024 - 1
# Seconds that a client has to end the TCP connection after the closing handshake.
LINGER = 0.5
TERMINALS = frozenset({"response.completed", "response.failed", "response.incomplete"})


class WebSocketConnection:
    """One WebSocket, from the handshake request on. Call `check_idle` when faults were added."""

    def __init__(self, http: HttpConnection, head: Head, backend: Backend) -> None:
        self.wire = http.wire
        self.backend = backend
        self.account = SimulatedAccount("")
        self._http = http
        self._head = head
        self._protocol = ServerProtocol(max_size=MAX_MESSAGE)
        self._memory = SocketMemory()
        self._fragments: list[bytes] = []
        self._muted = False
        self._turn: WebSocketTurn | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._refusal: Refusal | None = None
        try:
            self.account = backend.identify(head.headers)
        except Refused as error:
            self._refusal = error.refusal
        self._origin = Origin(http.number, head.path, self.account.name, head.headers)
        self._socket = backend.observed.handshake(self._origin)

    def start(self, trailing: bytes) -> None:
        """Answer the handshake. `trailing` are the bytes that came after its request."""
        self.wire.spawn(self._handshake())
        headers = Headers((name.decode("latin-1"), value.decode("latin-1")) for name, value in self._head.raw_headers)
        # The library reads a handshake from bytes; h11 has read these, so they are written once more.
        self._protocol.receive_data(HandshakeRequest(self._head.path, headers).serialize())
        self.received(trailing)

    def received(self, data: bytes) -> None:
        if data:
            self._protocol.receive_data(data)
        self._flush()
        for event in self._protocol.events_received():
            if isinstance(event, HandshakeRequest):
                self._request = event
            elif isinstance(event, Frame):
                self._frame(event)
        if self._protocol.state in (State.CLOSING, State.CLOSED):
            self._give_up()

    def lost(self) -> None:
        self._give_up()
        if self._linger is not None:
            self._linger.cancel()
        close = self._protocol.close_rcvd
        self.backend.observed.closed(self._socket, None if close is None else close.code)

    def check_idle(self) -> None:
        """Meet the faults for idle sockets, if this one is open, has answered something and answers nothing now."""
        if self._turn is not None or not self._socket.requests or self._protocol.state is not State.OPEN:
            return
        steps = self.backend.idle(self.account)
        if steps:
            self.wire.spawn(run(steps, self))

    def settled(self, turn: WebSocketTurn) -> None:
        """The response is over: from here on another one may be asked for."""
        if self._turn is turn:
            self._turn = None

    def text(self, payload: bytes) -> None:
        """Send a text frame, unless the closing handshake has begun."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_text(payload)
            self._flush()

    def accept(self) -> None:
        response = self._protocol.accept(self._request)
        self._protocol.send_response(response)
        self._flush()
        self.backend.observed.answered(self._socket, response.status_code)

    def begin(self) -> None:
        raise ValueError("A response begins with its turn, not with its socket.")

    def send(self, event: Send) -> None:
        self.text(event.payload)

    def refuse(self, refusal: Refusal) -> None:
        self.backend.observed.answered(self._socket, refusal.status)
        self._http.refuse(refusal)

    def close(self, code: int) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(code)
            self._flush()
            self._expect_end()

    def mute_pongs(self) -> None:
        self._muted = True

    def split_chunks(self, size: int) -> None:
        raise ValueError("A WebSocket has no HTTP chunks.")

    def end(self) -> None:
        """The handshake was refused, so the connection speaks HTTP again."""
        self.wire.receiver = self._http
        self._http.finished()

    async def _handshake(self) -> None:
        if self._refusal is not None:
            self.refuse(self._refusal)
            self.end()
            return
        await run(self.backend.handshake(self.account), self)

    def _frame(self, frame: Frame) -> None:
        match frame.opcode:
            case Opcode.PING:
                self.backend.observed.pinged(self._socket)
            case Opcode.BINARY:
                self._protocol.fail(CloseCode.UNSUPPORTED_DATA, "only text is understood")
                self._flush()
            case Opcode.TEXT | Opcode.CONT:
                self._fragments.append(bytes(frame.data))
                if frame.fin:
                    message = b"".join(self._fragments)
                    self._fragments = []
                    self._message(message)

    def _message(self, raw: bytes) -> None:
        if self._protocol.state is not State.OPEN:
            return
        if self._turn is not None:
            message = "This connection has a response in progress; one response runs at a time."
            self.text(invalid(message, code="response_in_progress").frame())
            return
        record = self.backend.observed.request(self._origin, "websocket")
        self._socket.requests += 1
        request = Request(self.account, "websocket", self._head.path, self._head.headers, raw, self._memory)
        self._turn = WebSocketTurn(self, record, self.backend.answer(request, record))
        self.wire.spawn(self._run(self._turn, request))

    async def _run(self, turn: WebSocketTurn, request: Request) -> None:
        plan = turn.answer.plan
        await run(plan.steps, turn, plan.interval, lambda: self.backend.remember(request, turn.answer))
        turn.settle()
        self.check_idle()

    def _give_up(self) -> None:
        """The client has closed or left; a response that still runs has nobody to hear it."""
        if self._turn is not None:
            self.backend.left(self._turn.record)
            self._turn = None

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data == SEND_EOF:
                self.wire.half_close()
                self._expect_end()
            elif not (self._muted and data[0] & 0x0F == Opcode.PONG):
                self.wire.write(data)

    def _expect_end(self) -> None:
        if self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(LINGER, self.wire.abort)


class WebSocketTurn:
    """Says one response on a socket.

    It is settled with its terminal event or error frame: a client may ask for the next response as soon as it has
    read that, whatever else is still sent for this one.
    """

    def __init__(self, socket: WebSocketConnection, record: RequestRecord, answer: Answer) -> None:
        self.wire = socket.wire
        self.record = record
        self.answer = answer
        self._socket = socket
        self._observed = socket.backend.observed

    def settle(self) -> None:
        self._observed.ended(self.record, self.answer.plan.outcome)
        self._socket.settled(self)

    def begin(self) -> None:
        now = self._socket.backend.clock.wall()
        self._socket.text(encode(limit_event(self._socket.account, now)))
        headers: Json = {"openai-model": self.answer.model}
        if self.answer.turn_state is not None:
            headers["x-codex-turn-state"] = self.answer.turn_state
        self._socket.text(encode({"type": "response.metadata", "headers": headers}))

    def send(self, event: Send) -> None:
        self._socket.text(event.payload)
        self._observed.sent(self.record)
        if event.type in TERMINALS:
            self.settle()

    def refuse(self, refusal: Refusal) -> None:
        self._socket.text(refusal.frame())
        self.settle()

    def close(self, code: int) -> None:
        self._socket.close(code)

    def mute_pongs(self) -> None:
        self._socket.mute_pongs()

    def split_chunks(self, size: int) -> None:
        self._socket.split_chunks(size)

    def end(self) -> None:
        self.settle()

    def accept(self) -> None:
        raise ValueError("The handshake of this socket has been answered.")
