"""A process tells what it does when that has changed, and does what it is asked."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from structlog.testing import capture_logs

from gateway.conf import Tunables
from gateway.upstream.lane import LaneState
from gateway.upstream.pool import LanePool
from gateway.watch.orders import RETIRE_LANE, Asked
from gateway.watch.reporter import PAUSE, TELL_EVERY, Reporter
from gateway.watch.snapshot import Snapshot
from tests.gateway.upstream.fakes import FakeDialer, Time, key, target
from tests.support.memory import MemoryStore
from tests.support.virtual_loop import in_virtual_time

REPLICA = uuid.uuid4()


@dataclass
class Scene:
    """A reporter at work, whose process does what `snapshot` says."""

    store: MemoryStore
    pool: LanePool
    snapshot: Snapshot

    async def wait(self, looks: int = TELL_EVERY) -> None:
        await asyncio.sleep(PAUSE * looks + PAUSE / 2)

    async def order(self, lane: int, what: str = RETIRE_LANE) -> str:
        """What is said of an order."""
        self.store.orders[REPLICA] = [Asked(1, what, lane)]
        await self.wait()
        return self.store.said[1]


@asynccontextmanager
async def reporting() -> AsyncIterator[Scene]:
    scene = Scene(MemoryStore(), LanePool(Tunables(), Time().clock(), FakeDialer()), Snapshot())
    task = asyncio.ensure_future(Reporter(REPLICA, scene.store, scene.pool, lambda: scene.snapshot).run())
    try:
        yield scene
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await scene.pool.close()


@pytest.fixture
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


@in_virtual_time
async def test_a_snapshot_is_written_when_it_differs_from_the_last_one() -> None:
    async with reporting() as scene:
        await scene.wait()
        assert scene.store.told.pop(REPLICA) == Snapshot()
        await scene.wait()
        assert REPLICA not in scene.store.told
        scene.snapshot = Snapshot(held=1)
        await scene.wait()
        assert scene.store.told == {REPLICA: Snapshot(held=1)}


@in_virtual_time
async def test_an_idle_lane_is_closed_when_an_operator_asks_for_it() -> None:
    async with reporting() as scene:
        exchange = await scene.pool.borrow(key(), target())
        await exchange.close(clean=True)
        assert "closed" in await scene.order(exchange.lane.generation)
        assert list(scene.pool) == []


@in_virtual_time
async def test_a_lane_that_carries_a_response_is_closed_when_that_ends() -> None:
    async with reporting() as scene:
        exchange = await scene.pool.borrow(key(), target())
        await scene.order(exchange.lane.generation)
        assert exchange.lane.state is LaneState.RETIRING
        await exchange.close(clean=True)
        assert list(scene.pool) == []


@in_virtual_time
async def test_an_order_for_a_lane_that_is_gone_says_so() -> None:
    async with reporting() as scene:
        assert "no such" in await scene.order(99)


@in_virtual_time
async def test_an_order_of_a_newer_version_is_answered_too() -> None:
    async with reporting() as scene:
        assert "does not know dance" in await scene.order(1, "dance")


@in_virtual_time
async def test_a_store_that_fails_is_told_again_later(quiet: None) -> None:
    async with reporting() as scene:
        scene.store.broken = True
        await scene.wait()
        scene.store.broken = False
        await scene.wait()
        assert REPLICA in scene.store.told
