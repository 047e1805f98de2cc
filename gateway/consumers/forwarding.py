"""A turn that another replica carries: handed over, and its answer passed on."""

from __future__ import annotations

import asyncio
from enum import Enum, auto

import structlog

from gateway.conf import MIB
from gateway.consumers.base import Gate
from gateway.consumers.render import failed
from gateway.consumers.wire import ClientWire, send_document
from gateway.errors import ClientLost, ConnectFailed, GatewayError, UpstreamLost
from gateway.forwarding.envelope import NOT_TAKEN
from gateway.forwarding.forwarder import Parcel
from gateway.protocol.events import ENDS
from gateway.protocol.sse import SseSplitter, encode_event
from gateway.turns.answers import answer
from gateway.turns.request import Route
from gateway.turns.settle import patience_with
from gateway.turns.watch import Watch
from gateway.upstream.peers import PeerAnswer

log = structlog.get_logger("gateway.forwarding")

LARGEST_DOCUMENT = 64 * MIB
LARGEST_EVENT = 16 * MIB
BLANK_LINES = (b"\n\n", b"\r\n\r\n", b"\r\r")
# Headers of the owner's answer that are about its own connection.
OWN = frozenset({"connection", "content-length", "date", "keep-alive", "server", "transfer-encoding"})


class Given(Enum):
    """What of its answer the client has been given, or has in its buffer."""

    NOTHING = auto()
    PART_OF_A_STREAM = auto()
    ALL = auto()


class Forward:
    """One turn at another replica. Its status line is the hand-over; everything is settled there.

    Whether the client takes its answer is watched here: the owner sees only this replica.
    """

    def __init__(self, gate: Gate, wire: ClientWire, route: Route) -> None:
        self._gate = gate
        self._wire = wire
        self._route = route
        self._task = asyncio.current_task()
        self._abort_error: GatewayError | None = None
        self._watch = Watch(gate.tunables, wire.check, self.abort)
        self._given = Given.NOTHING
        self._last_block = b""

    def abort(self, error: GatewayError) -> None:
        """End the turn with `error`; the owner sees its client leave."""
        if self._abort_error is None and self._task is not None:
            self._abort_error = error
            self._task.cancel()

    def goes_on_alone(self) -> bool:
        return False

    async def run(self, parcel: Parcel) -> bool:
        """Whether the owner took the turn. If not, provably nothing was done; raises `GatewayError`s for the rest."""
        self._gate.forwards[self] = None
        self._watch.start()
        try:
            return await self._run(parcel)
        except asyncio.CancelledError:
            if self._abort_error is None or self._task is None:
                raise
            self._task.uncancel()
            await self._break_off(self._abort_error)
            return True
        except UpstreamLost as error:
            log.warning("forward_lost", url=parcel.url, begun=self._given is not Given.NOTHING)
            await self._break_off(error)
            return True
        finally:
            self._watch.stop()
            del self._gate.forwards[self]

    async def _run(self, parcel: Parcel) -> bool:
        try:
            async with self._gate.peers.post(parcel.url, parcel.headers, parcel.body) as told:
                if told.status == NOT_TAKEN:
                    return False
                await self._pass_on(told)
        except ConnectFailed:
            log.warning("owner_unreachable", url=parcel.url)
            return False
        return True

    async def _pass_on(self, told: PeerAnswer) -> None:
        headers = {name: value for name, value in told.headers.items() if name not in OWN}
        if not told.headers.get("content-type", "").startswith("text/event-stream"):
            headers.pop("content-type", None)
            body = await _whole(told)
            self._given = Given.ALL
            await send_document(self._wire, told.status, body, headers)
            return
        pairs = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        self._given = Given.PART_OF_A_STREAM
        await self._wire.send({"type": "http.response.start", "status": told.status, "headers": pairs})
        await self._stream(told)

    async def _stream(self, told: PeerAnswer) -> None:
        """Pass whole events on, so that whatever breaks off, the client has no half of one."""
        pending = b""
        async for chunk in told.chunks():
            pending += chunk
            end = max(pending.rfind(line) + len(line) if line in pending else 0 for line in BLANK_LINES)
            if end:
                self._last_block = pending[:end]
                pending = pending[end:]
                await self._wire.send({"type": "http.response.body", "body": self._last_block, "more_body": True})
            elif len(pending) > LARGEST_EVENT:
                raise UpstreamLost("The replica that carried the turn sent an event that is too large.")
        await self._end_stream(pending)

    async def _end_stream(self, last: bytes) -> None:
        self._given = Given.ALL
        await self._wire.send({"type": "http.response.body", "body": last, "more_body": False})

    async def _break_off(self, error: GatewayError) -> None:
        """The owner's answer ends early, or its client is given up; raises `error` when it is not too late for that."""
        self._watch.stop()
        if self._given is Given.NOTHING or isinstance(error, ClientLost):
            raise error
        if self._given is Given.ALL:
            return
        try:
            async with asyncio.timeout(patience_with(error, self._gate.tunables)):
                await self._end_stream(self._last_words(error))
        except TimeoutError:
            # The client will not hear it.
            pass

    def _last_words(self, error: GatewayError) -> bytes:
        """One terminal event for the client, unless it has one."""
        events = SseSplitter(LARGEST_EVENT).feed(self._last_block)
        if events and events[-1].kind in ENDS:
            return b""
        return encode_event(failed(answer(error, self._route), None, self._gate.clock.wall()))


async def _whole(told: PeerAnswer) -> bytes:
    body = b""
    async for chunk in told.chunks():
        body += chunk
        if len(body) > LARGEST_DOCUMENT:
            raise UpstreamLost("The replica that carried the turn sent a document that is too large.")
    return body
