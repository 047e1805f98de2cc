"""A lane that is replaced drains: it serves who has it, takes nobody new, publishes nothing, and is closed once.

Whoever closes a lane may be cancelled at any moment; the lane and its place are never lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from gateway.conf import Tunables
from gateway.errors import Overloaded, OwnerGone
from gateway.upstream.lane import LaneExchange, LaneKey, LaneState
from gateway.upstream.pool import LanePool
from tests.gateway.upstream.fakes import FakeDialer, Time, key, socket_of, target

LIMIT = 2


class Owned:
    """What this process owns, as a test says."""

    def __init__(self) -> None:
        self.mine = True

    def holds(self, lane: LaneKey) -> bool:
        return lane.private or self.mine

    def lanes(self, account: int, limit: int, held: int) -> int:
        return limit


class Scene:
    """A pool of two lanes an account, over a network that fails and waits as a test says."""

    def __init__(self) -> None:
        self.time, self.dialer, self.owned = Time(), FakeDialer(), Owned()
        tunables = Tunables(lanes_per_account=LIMIT, lane_max_age=100.0, lane_idle_timeout=30.0)
        self.pool = LanePool(tunables, self.time.clock(), self.dialer, self.owned)

    async def borrow(self, session: str = "s", account: int = 1) -> LaneExchange:
        return await self.pool.borrow(key(session, account), target(account))

    async def idle(self, session: str = "s", anchor: str = "resp_1") -> LaneExchange:
        exchange = await self.borrow(session)
        exchange.publish(anchor)
        await exchange.close(clean=True)
        return exchange


async def turns(count: int = 5) -> None:
    """Let everybody else run so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_successor_is_canonical_at_once_while_the_old_generation_still_works() -> None:
    scene = Scene()
    old = await scene.borrow(account=1)
    await old.send(b"{}")
    scene.pool.replace(1, "s", 2)
    new = await scene.borrow(account=2)
    assert scene.pool.shared(1, "s") == [new.lane]
    assert new.publish("resp_new")
    assert not old.publish("resp_old")
    assert scene.pool.owner("resp_new", 1, "s") is new.lane
    with pytest.raises(OwnerGone):
        scene.pool.owner("resp_old", 1, "s")


async def test_a_turn_that_had_the_lane_before_it_was_replaced_may_still_send() -> None:
    scene = Scene()
    old = await scene.borrow()
    scene.pool.replace(1, "s", 2)
    await old.send(b"{}")
    assert socket_of(old).written == [b"{}"]
    await old.close(clean=True)
    assert old.lane.state is LaneState.CLOSED


async def test_a_lane_that_is_being_dialled_drains_as_soon_as_it_is_connected() -> None:
    scene = Scene()
    scene.dialer.held = True
    dialling = asyncio.ensure_future(scene.borrow())
    await turns()
    scene.pool.replace(1, "s", 2)
    assert scene.pool.shared(1, "s") == []
    scene.dialer.pending[0].set_result(scene.dialer.connect())
    old = await dialling
    await old.send(b"{}")
    assert not old.publish("resp_1")
    assert scene.pool.summary() == "1 retiring"
    await old.close(clean=True)
    assert scene.pool.summary() == ""


async def test_an_idle_lane_that_is_replaced_is_closed_and_its_anchor_gone_before_that() -> None:
    scene = Scene()
    old = await scene.idle()
    socket_of(old).closable.clear()
    scene.pool.replace(1, "s", 2)
    with pytest.raises(OwnerGone):
        scene.pool.owner("resp_1", 1, "s")
    assert scene.pool.summary() == "1 retiring"
    socket_of(old).closable.set()
    await turns()
    assert old.lane.state is LaneState.CLOSED


async def test_only_the_lanes_of_that_client_and_conversation_are_replaced() -> None:
    scene = Scene()
    other = await scene.borrow("other")
    stranger = await scene.pool.borrow(key("s", client=2), target())
    scene.pool.replace(1, "s", 2)
    assert other.lane.alive
    assert stranger.lane.alive


async def test_a_draining_lane_counts_against_the_limit_until_its_socket_is_closed() -> None:
    scene = Scene()
    old, _ = await scene.borrow(), await scene.borrow("busy")
    scene.pool.replace(1, "s", 2)
    with pytest.raises(Overloaded):
        await scene.borrow("new")
    await old.close(clean=True)
    assert (await scene.borrow("new")).lane.alive


@pytest.mark.parametrize("how", ["shutdown", "the end of its turn", "the account's removal and the end of its turn"])
async def test_a_draining_lane_is_closed_by(how: str) -> None:
    scene = Scene()
    old = await scene.borrow()
    scene.pool.replace(1, "s", 2)
    if how == "shutdown":
        await scene.pool.close()
    else:
        if how.startswith("the account"):
            await scene.pool.retire_account(1)
        await old.close(clean=True)
    assert not socket_of(old).open
    assert socket_of(old).close_calls == 1
    assert scene.pool.summary() == ""


async def test_a_process_that_lost_a_conversation_publishes_and_continues_nothing_of_it() -> None:
    scene = Scene()
    busy, idle = await scene.borrow(), await scene.idle(anchor="resp_1")
    scene.owned.mine = False
    assert not busy.publish("resp_2")
    with pytest.raises(OwnerGone):
        scene.pool.owner("resp_1", 1, "s")
    scene.pool.retire_shared(1, "s")
    await turns()
    assert [idle.lane.state, busy.lane.state] == [LaneState.CLOSED, LaneState.RETIRING]


async def test_a_close_that_fails_keeps_its_place_and_is_tried_again() -> None:
    scene = Scene()
    stuck = await scene.borrow()
    socket_of(stuck).close_error = OSError("no buffer")
    with capture_logs() as logs:
        await stuck.close(clean=False)
    assert [event["event"] for event in logs] == ["lane_not_closed"]
    assert scene.pool.summary() == "1 retiring"
    await scene.borrow("busy")
    with pytest.raises(Overloaded):
        await scene.borrow("new")
    await scene.pool.sweep()
    assert socket_of(stuck).close_calls == 2
    socket_of(stuck).close_error = None
    await scene.pool.sweep()
    assert scene.pool.summary() == "1 busy"


async def test_a_lane_whose_socket_is_still_open_after_its_close_is_not_lost_sight_of() -> None:
    scene = Scene()
    stuck = await scene.borrow()
    socket_of(stuck).stays_open = True
    await stuck.close(clean=False)
    assert scene.pool.summary() == "1 retiring"
    socket_of(stuck).stays_open = False
    await scene.pool.sweep()
    assert scene.pool.summary() == ""


Way = Callable[[Scene, LaneExchange], Awaitable[object]]


async def give_back(scene: Scene, lane: LaneExchange) -> None:
    await lane.close(clean=False)


async def sweep(scene: Scene, lane: LaneExchange) -> None:
    await lane.close(clean=True)
    scene.time.now += 31
    await scene.pool.sweep()


async def leave_account(scene: Scene, lane: LaneExchange) -> None:
    await lane.close(clean=True)
    await scene.pool.retire_account(1)


async def continue_past_age(scene: Scene, lane: LaneExchange) -> None:
    lane.publish("resp_1")
    await lane.close(clean=True)
    scene.time.now += 101
    with pytest.raises(OwnerGone):
        await scene.pool.borrow_owner("resp_1", 1, "s")


async def give_way(scene: Scene, lane: LaneExchange) -> None:
    await lane.close(clean=True)
    await scene.borrow("busy")
    await (await scene.borrow("new")).close(clean=True)


async def shut_down(scene: Scene, lane: LaneExchange) -> None:
    await scene.pool.close()


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("way", [give_back, sweep, leave_account, continue_past_age, give_way, shut_down])
async def test_a_closer_that_is_cancelled_at_any_await_loses_nothing(way: Way, fails: bool) -> None:
    for steps in range(14):
        scene = Scene()
        lane = await scene.borrow()
        socket = socket_of(lane)
        socket.closable.clear()
        socket.close_error = OSError("stuck") if fails else None
        closer = asyncio.ensure_future(way(scene, lane))
        await turns(steps)
        closing = socket.close_calls == 1
        closer.cancel()
        await turns(3)
        if closing:
            assert not closer.done(), "the clean-up comes first"
        socket.closable.set()
        await asyncio.wait({closer})
        if closing:
            assert closer.cancelled(), "the cancellation comes after it"
            assert socket.close_calls == 1, "one close, whoever asks"
        # Nothing is lost: the lane is gone with its socket, or still there, and a sweep or the end closes it.
        assert (lane.lane in scene.pool) == socket.open
        socket.close_error = None
        await scene.pool.close()
        assert scene.dialer.open == []
        assert scene.pool.summary() == ""
