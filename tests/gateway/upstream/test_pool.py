"""The pool of lanes: capacity, anchors, who may use which lane, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.conf import Tunables
from gateway.errors import ConnectFailed, Overloaded, OwnerBusy, OwnerGone
from gateway.upstream.lane import PRIVATE_SESSION, LaneExchange, LaneState
from gateway.upstream.pool import FRESH_FOR, LanePool
from tests.gateway.upstream.fakes import FakeDialer, Time, key, socket_of, target

SOCKET = f"{PRIVATE_SESSION}one"
AGE = 100.0
IDLE = 30.0


@dataclass
class Scene:
    """A pool over a fake network, at a time that stands still."""

    pool: LanePool
    dialer: FakeDialer
    time: Time

    async def borrow(self, session: str = "s", account: int = 1, prefer: str | None = None) -> LaneExchange:
        return await self.pool.borrow(key(session, account), target(account), prefer)

    async def idle_lane(self, session: str = "s", account: int = 1, anchor: str | None = None) -> LaneExchange:
        """A lane that has carried a response and rests; what is returned is the exchange that did."""
        exchange = await self.borrow(session, account)
        if anchor is not None:
            exchange.publish(anchor)
        await exchange.close(clean=True)
        return exchange


def make_scene(limit: int = 4, **changes: Any) -> Scene:
    tunables = Tunables(lanes_per_account=limit, lane_max_age=AGE, lane_idle_timeout=IDLE, **changes)
    time, dialer = Time(), FakeDialer()
    return Scene(LanePool(tunables, time.clock(), dialer), dialer, time)


@pytest.fixture
async def scene():
    made = make_scene()
    yield made
    for connection in made.dialer.dialled:
        connection.closable.set()
    await made.pool.close()
    await settle()
    assert made.dialer.open == []
    assert list(made.pool) == []


async def settle() -> None:
    """Let every task that can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def cancelled(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# Capacity


async def test_a_lane_is_counted_before_it_is_dialled(scene: Scene):
    scene.dialer.held = True
    dialling = asyncio.ensure_future(scene.borrow())
    await settle()
    assert repr(scene.pool) == "<LanePool 1 connecting | 0 anchors>"
    await cancelled(dialling)


async def test_a_dial_that_fails_gives_its_place_back(scene: Scene):
    scene.dialer.error = ConnectFailed("refused")
    with pytest.raises(ConnectFailed):
        await scene.borrow()
    assert repr(scene.pool) == "<LanePool empty | 0 anchors>"


async def test_a_dial_that_is_cancelled_gives_its_place_back(scene: Scene):
    scene.dialer.held = True
    dialling = asyncio.ensure_future(scene.borrow())
    await settle()
    await cancelled(dialling)
    assert repr(scene.pool) == "<LanePool empty | 0 anchors>"


async def test_a_socket_that_closes_right_after_its_handshake_is_a_failed_dial(scene: Scene):
    scene.dialer.held = True
    dialling = asyncio.ensure_future(scene.borrow())
    await settle()
    connection = scene.dialer.connect()
    connection.lose()
    scene.dialer.pending[0].set_result(connection)
    with pytest.raises(ConnectFailed, match="right after the handshake"):
        await dialling
    assert repr(scene.pool) == "<LanePool empty | 0 anchors>"


async def test_many_acquisitions_at_once_never_exceed_the_limit(scene: Scene):
    scene.pool = LanePool(Tunables(lanes_per_account=16), scene.time.clock(), scene.dialer)

    async def turn(number: int) -> str:
        await asyncio.sleep(0)
        try:
            exchange = await scene.borrow(session=f"s{number % 40}")
        except Overloaded as error:
            return error.code
        for _ in range(number % 7):
            await asyncio.sleep(0)
        await exchange.close(clean=number % 5 > 0)
        return "carried"

    results = await asyncio.gather(*(turn(number) for number in range(200)))
    assert set(results) == {"carried", "lane_limit"}
    assert scene.dialer.most_open == 16
    assert len(list(scene.pool)) == len(scene.dialer.open) <= 16


async def test_the_limit_is_each_accounts_own(scene: Scene):
    for number in range(4):
        await scene.borrow(f"s{number}")
    await scene.borrow("s", account=2)
    with pytest.raises(Overloaded):
        await scene.borrow("s4")


async def test_the_longest_idle_lane_gives_way_even_one_of_a_client_socket(scene: Scene):
    idle = []
    for session in (SOCKET, "s1", "s2", "s3"):
        idle.append(await scene.idle_lane(session, anchor=f"resp_{session}"))
        scene.time.now += 1
    await scene.borrow("new")
    assert [exchange.lane.state for exchange in idle] == [LaneState.CLOSED, *[LaneState.OPEN] * 3]
    with pytest.raises(OwnerGone):
        scene.pool.owner(f"resp_{SOCKET}", 1, SOCKET)


async def test_a_busy_lane_never_gives_way(scene: Scene):
    busy = [await scene.borrow(f"s{number}") for number in range(4)]
    with pytest.raises(Overloaded) as refused:
        await scene.borrow("new")
    assert (refused.value.code, refused.value.retry_after) == ("lane_limit", 2)
    assert all(exchange.lane.state is LaneState.BUSY for exchange in busy)


async def test_a_lane_that_still_closes_holds_its_place_and_a_newcomer_waits_for_it(scene: Scene):
    """A turn is refused only if all lanes are busy; one that closes will be gone within `CLOSE_TIMEOUT`."""
    closing = await scene.idle_lane("old")
    for number in range(3):
        await scene.borrow(f"s{number}")
    socket_of(closing).closable.clear()
    sweeping = asyncio.ensure_future(scene.pool.retire_session("old"))
    await settle()
    assert repr(scene.pool) == "<LanePool 3 busy, 1 retiring | 0 anchors>"
    borrowing = asyncio.ensure_future(scene.borrow("new"))
    await settle()
    assert not borrowing.done()
    assert len(scene.dialer.open) == 4
    socket_of(closing).closable.set()
    await borrowing
    await sweeping
    assert len(scene.dialer.open) == 4


async def test_a_newcomer_that_waits_for_a_closing_lane_can_be_cancelled(scene: Scene):
    closing = await scene.idle_lane("old")
    for number in range(3):
        await scene.borrow(f"s{number}")
    socket_of(closing).closable.clear()
    first = asyncio.ensure_future(scene.borrow("new"))
    second = asyncio.ensure_future(scene.borrow("newer"))
    await settle()
    await cancelled(second)
    assert socket_of(closing).close_calls == 1
    socket_of(closing).closable.set()
    await first


# Borrowing and giving back


async def test_a_clean_lane_is_used_again_the_last_used_first(scene: Scene):
    first, second = await scene.borrow(), await scene.borrow()
    await second.close(clean=True)
    scene.time.now += 1
    await first.close(clean=True)
    assert [lane.generation for lane in scene.pool.idle(key())] == [1, 2]
    assert (await scene.borrow()).lane is first.lane


async def test_a_lane_with_the_preferred_anchor_comes_before_the_last_used(scene: Scene):
    first, second = await scene.borrow(), await scene.borrow()
    first.publish("resp_1")
    await first.close(clean=True)
    scene.time.now += 1
    await second.close(clean=True)
    assert (await scene.borrow(prefer="resp_1")).lane is first.lane


async def test_a_lane_of_another_session_account_or_client_is_not_used(scene: Scene):
    await scene.idle_lane()
    await scene.borrow("other")
    await scene.borrow("s", account=2)
    await scene.pool.borrow(key(client=2), target())
    assert len(scene.dialer.dialled) == 4


async def test_a_lane_given_back_unclean_is_closed_before_that_returns(scene: Scene):
    exchange = await scene.borrow()
    await exchange.close(clean=False)
    assert exchange.lane.state is LaneState.CLOSED
    assert list(scene.pool) == []


async def test_a_lane_is_closed_once_whoever_asks(scene: Scene):
    exchange = await scene.borrow()
    socket_of(exchange).closable.clear()
    closing = [asyncio.ensure_future(exchange.close(clean=False)) for _ in range(2)]
    sweeping = asyncio.ensure_future(scene.pool.close())
    await settle()
    closing[0].cancel()
    await settle()
    assert not closing[0].done(), "whoever closes a lane sees that to its end"
    assert scene.pool.idle(key()) == []
    socket_of(exchange).closable.set()
    await cancelled(closing[0])
    await asyncio.gather(closing[1], sweeping)
    assert socket_of(exchange).close_calls == 1


async def test_a_lane_lost_while_it_carries_a_response_frees_its_place_at_once(scene: Scene):
    exchange = await scene.borrow()
    exchange.publish("resp_1")
    socket_of(exchange).lose()
    assert repr(scene.pool) == "<LanePool empty | 0 anchors>"
    await exchange.close(clean=True)
    assert exchange.lane.state is LaneState.CLOSED


async def test_an_idle_lane_that_is_lost_is_forgotten_without_anybody_asking(scene: Scene):
    exchange = await scene.idle_lane(anchor="resp_1")
    socket_of(exchange).lose()
    assert repr(scene.pool) == "<LanePool empty | 0 anchors>"
    with pytest.raises(OwnerGone):
        scene.pool.owner("resp_1", 1, "s")


async def test_a_lane_that_is_gone_is_kept_by_nobody(scene: Scene):
    exchange = await scene.idle_lane(anchor="resp_1")
    gone = weakref.ref(exchange.lane)
    socket_of(exchange).lose()
    scene.dialer.dialled.clear()
    del exchange
    await settle()
    gc.collect()
    assert gone() is None


# Anchors


async def test_a_lane_has_one_anchor_its_newest_response(scene: Scene):
    exchange = await scene.borrow()
    exchange.publish("resp_1")
    exchange.publish("resp_2")
    assert scene.pool.owner("resp_2", 1, "s") is exchange.lane
    with pytest.raises(OwnerGone):
        scene.pool.owner("resp_1", 1, "s")
    assert "1 anchors" in repr(scene.pool)


async def test_a_lane_that_carries_nothing_publishes_nothing(scene: Scene):
    idle = await scene.idle_lane()
    idle.publish("resp_1")
    lost = await scene.borrow("other")
    socket_of(lost).lose()
    lost.publish("resp_2")
    assert "0 anchors" in repr(scene.pool)


async def close(scene: Scene, exchange: LaneExchange) -> None:
    await exchange.close(clean=False)


async def replace(scene: Scene, exchange: LaneExchange) -> None:
    exchange.publish("resp_2")


async def evict(scene: Scene, exchange: LaneExchange) -> None:
    await exchange.close(clean=True)
    for number in range(4):
        await scene.borrow(f"new {number}")


async def forget(scene: Scene, exchange: LaneExchange) -> None:
    scene.pool.forget("resp_1")


async def break_off(scene: Scene, exchange: LaneExchange) -> None:
    socket_of(exchange).lose()


@pytest.mark.parametrize("how", [close, replace, evict, forget, break_off])
async def test_an_anchor_ends_with_what_it_stood_for(
    scene: Scene, how: Callable[[Scene, LaneExchange], Coroutine[Any, Any, None]]
):
    exchange = await scene.borrow()
    exchange.publish("resp_1")
    await how(scene, exchange)
    with pytest.raises(OwnerGone):
        scene.pool.owner("resp_1", 1, "s")


async def test_forgetting_an_unknown_response_changes_nothing(scene: Scene):
    exchange = await scene.borrow()
    exchange.publish("resp_1")
    scene.pool.forget("resp_x")
    assert scene.pool.owner("resp_1", 1, "s") is exchange.lane


async def test_what_a_lane_holds_is_forgotten_with_its_anchor(scene: Scene):
    exchange = await scene.borrow()
    exchange.publish("resp_1")
    exchange.lane.chain = object()  # type: ignore[assignment]  # any will do
    scene.pool.forget("resp_1")
    await exchange.close(clean=True)
    assert exchange.lane.chain is None


# Owners


async def test_only_the_same_client_may_continue_a_response(scene: Scene):
    await scene.idle_lane(anchor="resp_1")
    assert scene.pool.owner("resp_1", 1, "s")
    with pytest.raises(OwnerGone, match="no open upstream connection"):
        scene.pool.owner("resp_1", 2, "s")


async def test_a_lane_of_a_conversation_may_be_continued_from_anywhere_but_a_private_one_only_from_its_socket(
    scene: Scene,
):
    await scene.idle_lane("s", anchor="resp_1")
    await scene.idle_lane(SOCKET, anchor="resp_2")
    assert scene.pool.owner("resp_1", 1, "another")
    assert scene.pool.owner("resp_2", 1, SOCKET)
    with pytest.raises(OwnerGone, match="another WebSocket"):
        scene.pool.owner("resp_2", 1, f"{PRIVATE_SESSION}two")


async def test_a_stranger_learns_nothing_of_a_busy_or_private_lane(scene: Scene):
    """The client is checked first, so that every stranger gets the same answer."""
    exchange = await scene.borrow(SOCKET)
    exchange.publish("resp_1")
    with pytest.raises(OwnerGone, match="no open upstream connection"):
        await scene.pool.borrow_owner("resp_1", 2, "elsewhere")
    with pytest.raises(OwnerGone, match="another WebSocket"):
        await scene.pool.borrow_owner("resp_1", 1, "elsewhere")
    with pytest.raises(OwnerBusy):
        await scene.pool.borrow_owner("resp_1", 1, SOCKET)


async def test_a_continuation_borrows_its_owner_and_never_dials(scene: Scene):
    exchange = await scene.idle_lane(anchor="resp_1")
    assert (await scene.pool.borrow_owner("resp_1", 1, "s")).lane is exchange.lane
    with pytest.raises(OwnerGone):
        await scene.pool.borrow_owner("resp_x", 1, "s")
    assert len(scene.dialer.dialled) == 1


async def test_an_owner_past_its_age_is_closed_and_gone(scene: Scene):
    exchange = await scene.idle_lane(anchor="resp_1")
    scene.time.now += AGE + 1
    with pytest.raises(OwnerGone, match="age limit"):
        await scene.pool.borrow_owner("resp_1", 1, "s")
    assert exchange.lane.state is LaneState.CLOSED
    assert socket_of(exchange).pings == 0


# Silence


async def test_a_lane_that_was_heard_of_lately_is_used_without_a_ping(scene: Scene):
    exchange = await scene.idle_lane()
    scene.time.now += FRESH_FOR
    await scene.borrow()
    assert socket_of(exchange).pings == 0


async def test_a_pong_counts_as_being_heard_of(scene: Scene):
    exchange = await scene.idle_lane()
    scene.time.now += 10 * FRESH_FOR / 2
    socket_of(exchange).last_heard = scene.time.now - 1
    await scene.borrow()
    assert socket_of(exchange).pings == 0


async def test_a_silent_lane_that_answers_a_ping_is_used(scene: Scene):
    exchange = await scene.idle_lane()
    scene.time.now += FRESH_FOR + 1
    assert (await scene.borrow()).lane is exchange.lane
    assert socket_of(exchange).pings == 1


async def test_a_half_open_lane_costs_a_reconnect_and_no_turn(scene: Scene):
    exchange = await scene.idle_lane()
    socket_of(exchange).pong = False
    scene.time.now += FRESH_FOR + 1
    borrowed = await scene.borrow()
    assert borrowed.lane is not exchange.lane
    await settle()
    assert exchange.lane.state is LaneState.CLOSED


async def test_a_half_open_lane_makes_room_for_its_successor_at_the_limit(scene: Scene):
    for number in range(3):
        await scene.borrow(f"s{number}")
    half_open = await scene.idle_lane()
    socket_of(half_open).pong = False
    scene.time.now += FRESH_FOR + 1
    borrowed = await scene.borrow()
    assert borrowed.lane.state is LaneState.BUSY
    assert scene.dialer.most_open == 4


async def test_a_half_open_owner_is_gone(scene: Scene):
    exchange = await scene.idle_lane(anchor="resp_1")
    socket_of(exchange).pong = False
    scene.time.now += FRESH_FOR + 1
    with pytest.raises(OwnerGone, match="no longer answers"):
        await scene.pool.borrow_owner("resp_1", 1, "s")
    with pytest.raises(OwnerGone, match="no open upstream connection"):
        scene.pool.owner("resp_1", 1, "s")


async def test_a_lane_that_is_being_checked_is_nobody_elses(scene: Scene):
    exchange = await scene.idle_lane(anchor="resp_1")
    socket_of(exchange).pong = asyncio.get_running_loop().create_future()
    scene.time.now += FRESH_FOR + 1
    checking = asyncio.ensure_future(scene.borrow())
    await settle()
    assert scene.pool.idle(key()) == []
    with pytest.raises(OwnerBusy):
        await scene.pool.borrow_owner("resp_1", 1, "s")
    socket_of(exchange).pong.set_result(True)
    assert (await checking).lane is exchange.lane


async def test_a_check_that_is_cancelled_leaves_no_lane_busy(scene: Scene):
    exchange = await scene.idle_lane()
    socket_of(exchange).pong = asyncio.get_running_loop().create_future()
    scene.time.now += FRESH_FOR + 1
    checking = asyncio.ensure_future(scene.borrow())
    await settle()
    await cancelled(checking)
    await settle()
    assert exchange.lane.state is LaneState.CLOSED


async def test_a_lane_lost_while_it_is_checked_is_not_borrowed(scene: Scene):
    exchange = await scene.idle_lane()
    socket_of(exchange).pong = asyncio.get_running_loop().create_future()
    scene.time.now += FRESH_FOR + 1
    checking = asyncio.ensure_future(scene.borrow())
    await settle()
    socket_of(exchange).lose()
    socket_of(exchange).pong.set_result(True)
    assert (await checking).lane is not exchange.lane


async def test_a_lane_retired_while_it_is_checked_is_closed_and_not_borrowed(scene: Scene):
    exchange = await scene.idle_lane(anchor="resp_1")
    socket_of(exchange).pong = asyncio.get_running_loop().create_future()
    scene.time.now += FRESH_FOR + 1
    checking = asyncio.ensure_future(scene.pool.borrow_owner("resp_1", 1, "s"))
    await settle()
    await scene.pool.retire_account(1)
    socket_of(exchange).pong.set_result(True)
    with pytest.raises(OwnerGone):
        await checking
    await settle()
    assert exchange.lane.state is LaneState.CLOSED


# What arrives while nobody reads


async def test_an_idle_lane_that_gets_too_much_is_closed(scene: Scene):
    scene.pool = LanePool(Tunables(client_buffer_bytes=10, client_buffer_total=100), scene.time.clock(), scene.dialer)
    exchange = await scene.idle_lane(anchor="resp_1")
    socket_of(exchange).push(b"12345", b"67890")
    assert exchange.lane.state is LaneState.OPEN
    socket_of(exchange).push(b"1")
    socket_of(exchange).push(b"2")
    await settle()
    assert exchange.lane.state is LaneState.CLOSED
    assert socket_of(exchange).close_calls == 1


async def test_idle_lanes_that_get_too_much_in_all_are_closed_the_fullest_first(scene: Scene):
    scene.pool = LanePool(Tunables(client_buffer_bytes=10, client_buffer_total=12), scene.time.clock(), scene.dialer)
    one, two = await scene.idle_lane("one"), await scene.idle_lane("two")
    socket_of(one).push(b"12345678")
    await settle()
    assert [one.lane.state, two.lane.state] == [LaneState.OPEN, LaneState.OPEN]
    socket_of(two).push(b"1234567")
    await settle()
    assert [one.lane.state, two.lane.state] == [LaneState.CLOSED, LaneState.OPEN]


# Retiring and sweeping


async def test_a_session_that_ends_takes_its_idle_lanes_along_and_no_others(scene: Scene):
    mine, other, busy = await scene.idle_lane(), await scene.idle_lane("other"), await scene.borrow("busy")
    await scene.pool.retire_session("s")
    await scene.pool.retire_session("busy")
    states = [exchange.lane.state for exchange in (mine, other, busy)]
    assert states == [LaneState.CLOSED, LaneState.OPEN, LaneState.BUSY]


async def test_a_session_that_goes_to_another_account_keeps_only_its_lanes_there(scene: Scene):
    here, there = await scene.idle_lane(account=1), await scene.idle_lane(account=2)
    await scene.pool.retire_session("s", but=2)
    assert [here.lane.state, there.lane.state] == [LaneState.CLOSED, LaneState.OPEN]


async def test_an_account_that_leaves_takes_its_idle_lanes_along_and_its_busy_ones_after_their_response(scene: Scene):
    idle, busy, other = await scene.idle_lane(), await scene.borrow("busy"), await scene.idle_lane(account=2)
    busy.publish("resp_1")
    await scene.pool.retire_account(1)
    assert [idle.lane.state, other.lane.state] == [LaneState.CLOSED, LaneState.OPEN]
    assert socket_of(busy).open
    busy.publish("resp_2")
    assert "0 anchors" in repr(scene.pool)
    await busy.close(clean=True)
    assert busy.lane.state is LaneState.CLOSED


async def test_lanes_that_are_too_old_or_idle_too_long_are_swept(scene: Scene):
    idle, private = await scene.idle_lane(), await scene.idle_lane(SOCKET)
    busy = await scene.borrow("busy")
    scene.time.now += IDLE + 1
    fresh = await scene.idle_lane("fresh")
    await scene.pool.sweep()
    swept = [exchange.lane.state for exchange in (idle, private, busy, fresh)]
    assert swept == [LaneState.CLOSED, LaneState.OPEN, LaneState.BUSY, LaneState.OPEN]
    scene.time.now += AGE - IDLE
    await scene.pool.sweep()
    assert [private.lane.state, busy.lane.state] == [LaneState.CLOSED, LaneState.BUSY]


async def test_a_lane_past_its_age_is_replaced_between_two_turns(scene: Scene):
    exchange = await scene.idle_lane()
    scene.time.now += AGE + 1
    borrowed = await scene.borrow()
    assert exchange.lane.state is LaneState.CLOSED
    assert borrowed.lane.generation > exchange.lane.generation


async def test_closing_the_pool_closes_busy_lanes_as_well(scene: Scene):
    exchanges = [await scene.idle_lane(), await scene.borrow("busy")]
    await scene.pool.close()
    assert [exchange.lane.state for exchange in exchanges] == [LaneState.CLOSED] * 2
