"""A turn that another replica carries, as its client sees it: the client's slowness is this replica's business."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from gateway.conf import Tunables
from gateway.consumers.base import Gate
from gateway.consumers.forwarding import Forward
from gateway.consumers.wire import ClientWire
from gateway.errors import ClientLost, Stopping
from gateway.forwarding.forwarder import Parcel
from gateway.turns.request import Route
from gateway.upstream.peers import lost
from tests.gateway.consumers.asgi import Server, events
from tests.support.virtual_loop import in_virtual_time, loop_clock

TUNABLES = Tunables(client_stall_timeout=60, close_timeout=2)
PARCEL = Parcel("http://ada:8000", {}, b"")
CREATED, COMPLETED = (
    b'data: {"type":"response.%s","response":{"id":"resp_1"}}\n\n' % kind for kind in (b"created", b"completed")
)
STOPPING = Stopping("The gateway is stopping.", retry_after=2)


@dataclass
class Owner:
    """The replica that carries the turn: says what it is given to say, then is silent, lost, or has ended."""

    chunks_: Sequence[bytes] = (CREATED, COMPLETED)
    then: str = "ends"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})

    @asynccontextmanager
    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> AsyncIterator[Owner]:
        yield self

    async def chunks(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks_:
            yield chunk
        if self.then == "is lost":
            raise lost()
        if self.then == "is silent":
            await asyncio.get_running_loop().create_future()


@dataclass
class Forwarding:
    """A forward that is under way to a client behind `server`."""

    server: Server
    task: asyncio.Task[bool]
    gate: FakeGate

    @staticmethod
    async def to(owner: Owner, *, full: bool = False) -> Forwarding:
        server, gate = Server(), FakeGate(owner)
        if full:
            server.fill()
        wire = ClientWire(server.send, TUNABLES, server.buffered)

        async def run() -> bool:
            return await Forward(cast(Gate, gate), wire, Route.CODEX).run(PARCEL)

        task = asyncio.ensure_future(run())
        await asyncio.sleep(0.001)
        return Forwarding(server, task, gate)

    @property
    def forward(self) -> Forward:
        (forward,) = self.gate.forwards
        return forward

    async def takes(self, messages: int) -> None:
        """Let the client take so many messages of those that wait for it, one after the other."""
        for _ in range(messages):
            self.server.free.set()
            self.server.fill()
            await asyncio.sleep(0.001)

    async def took(self) -> float:
        """Seconds until it has ended, however it did."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await asyncio.wait({self.task}, timeout=1000)
        assert self.task.done(), "it waits for its client for ever"
        assert not self.gate.forwards
        return loop.time() - begun

    def told(self) -> list[dict[str, Any]]:
        return events(b"".join(self.server.pieces))


class FakeGate:
    def __init__(self, owner: Owner) -> None:
        self.peers = owner
        self.clock = loop_clock()
        self.tunables = TUNABLES
        self.forwards: dict[Forward, None] = {}


@in_virtual_time
async def test_the_answer_is_passed_on_as_it_comes_and_ended_once() -> None:
    forwarding = await Forwarding.to(Owner())
    assert await forwarding.task
    assert forwarding.server.pieces == [CREATED, COMPLETED, b""]
    assert [message.get("more_body") for message in forwarding.server.sent] == [None, True, True, False]


@in_virtual_time
@pytest.mark.parametrize("then", ["ends", "is lost", "is silent"])
async def test_a_client_that_takes_nothing_is_given_up_after_its_time(then: str) -> None:
    """Else its turn holds its place here for as long as the client likes: the owner sees only this replica."""
    forwarding = await Forwarding.to(Owner((CREATED,), then), full=True)
    assert TUNABLES.client_stall_timeout <= await forwarding.took() <= 1.5 * TUNABLES.client_stall_timeout
    with pytest.raises(ClientLost, match="took nothing"):
        forwarding.task.result()


@in_virtual_time
async def test_a_stalled_client_is_told_no_longer_than_the_stop_allows() -> None:
    forwarding = await Forwarding.to(Owner((CREATED,), "is silent"))
    forwarding.server.fill()
    forwarding.forward.abort(STOPPING)
    assert await forwarding.took() == pytest.approx(TUNABLES.close_timeout)
    assert [event["type"] for event in forwarding.told()] == ["response.created", "response.failed"]
    assert forwarding.task.result()


@in_virtual_time
async def test_a_stalled_client_whose_turn_was_lost_has_its_time_and_the_stop_ends_it() -> None:
    forwarding = await Forwarding.to(Owner((CREATED,), "is lost"), full=True)
    await forwarding.takes(2)
    assert forwarding.told()[-1]["response"]["error"]["code"] == "replica_lost"
    forwarding.forward.abort(STOPPING)
    assert await forwarding.took() == 0.0


@in_virtual_time
@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_is_already_whole_is_not_begun_or_ended_again_when_the_process_stops(stream: bool) -> None:
    owner = Owner() if stream else Owner((b'{"id":"resp_1"}',), headers={"content-type": "application/json"})
    forwarding = await Forwarding.to(owner, full=True)
    await forwarding.takes(3 if stream else 1)
    assert forwarding.server.complete
    sent = len(forwarding.server.sent)
    forwarding.forward.abort(STOPPING)
    assert await forwarding.took() == 0.0
    assert forwarding.task.result()
    assert len(forwarding.server.sent) == sent


@in_virtual_time
async def test_a_turn_of_which_the_client_has_heard_nothing_is_refused_as_any_other() -> None:
    forwarding = await Forwarding.to(Owner((), "is silent", headers={}))
    forwarding.forward.abort(STOPPING)
    await forwarding.took()
    with pytest.raises(Stopping):
        forwarding.task.result()
    assert not forwarding.server.sent


@in_virtual_time
async def test_a_client_that_has_left_is_told_nothing() -> None:
    forwarding = await Forwarding.to(Owner((CREATED,), "is silent"))
    forwarding.forward.abort(ClientLost("The client has left."))
    await forwarding.took()
    with pytest.raises(ClientLost):
        forwarding.task.result()
    assert json.loads(forwarding.server.pieces[-1][6:])["type"] == "response.created"
