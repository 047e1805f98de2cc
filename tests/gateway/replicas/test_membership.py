"""When a replica looks for others that have died."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pytest

from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.replicas.membership import Membership
from tests.support.memory import MemoryStore
from tests.support.records import record, sent

ME, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)
TUNABLES = Tunables()


class World:
    """A replica among others, and the time, which all of them share."""

    def __init__(self) -> None:
        self.seconds = 1_800_000_000.0
        clock = Clock(monotonic=lambda: self.seconds, wall=lambda: self.seconds)
        self.store = CountingStore(lease_ttl=TUNABLES.lease_ttl, now=lambda: datetime.fromtimestamp(self.seconds, UTC))
        self.me = Membership(ME, self.store, TUNABLES, clock)

    async def pass_seconds(self, seconds: int) -> None:
        for _ in range(seconds):
            self.seconds += 1
            await self.me.tick()

    def outcomes(self) -> list[str]:
        return [turn["outcome"] for turn in self.store.turns.values()]


class CountingStore(MemoryStore):
    """Counts how often somebody looked for the dead."""

    looked = 0

    async def close_dead(self) -> int:
        self.looked += 1
        return await super().close_dead()


@pytest.fixture
def world() -> World:
    return World()


async def test_one_that_leaves_the_living_is_looked_for_within_a_second(world: World) -> None:
    await world.store.register(OTHER)
    await world.me.join("")
    await world.store.write_turns(OTHER, [sent(record())])
    await world.pass_seconds(int(TUNABLES.lease_ttl) - 1)
    assert world.outcomes() == [""]
    await world.pass_seconds(1)
    assert world.outcomes() == ["interrupted"]


async def test_one_that_was_never_met_is_found_with_a_heartbeat(world: World) -> None:
    await world.me.join("")
    await world.store.register(OTHER)
    await world.store.write_turns(OTHER, [sent(record())])
    world.seconds += TUNABLES.lease_ttl * 2
    await world.pass_seconds(1)
    assert world.outcomes() == ["interrupted"]


async def test_while_nobody_leaves_the_dead_are_looked_for_no_more_often_than_it_beats(world: World) -> None:
    await world.me.join("")
    await world.pass_seconds(60)
    assert world.store.looked == 60 / (TUNABLES.lease_ttl / 3)
