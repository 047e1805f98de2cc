"""Whoever runs the gateway, and the world around it: restarts, crashes, pauses, rotated keys, outages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING

from accounts.credentials import OpenAICredentials
from accounts.states import State

if TYPE_CHECKING:
    from tests.sim.world import World

Deed = Callable[[], Awaitable[None]]


class Operator:
    """Does one thing after another. `names` says what may happen at all."""

    def __init__(self, world: World, random: Random, names: frozenset[str]) -> None:
        self.world = world
        self.random = random
        deeds: dict[str, tuple[float, Deed]] = {
            "restart": (1.0, self.restart),
            "crash": (0.6, self.crash),
            "stall": (1.5, self.stall),
            "pause": (1.0, self.pause),
            "rotate-key": (0.7, self.rotate_key),
            "expire-token": (1.0, self.expire_token),
            "limit": (1.0, self.limit),
            "partition": (1.0, self.partition),
            "split": (0.6, self.split),
            "ledger": (1.0, self.break_ledger),
            "idle-faults": (4.0, self.idle_fault),
            "all-out": (0.4, self.all_out),
        }
        self._deeds = [(weight, deed) for name, (weight, deed) in deeds.items() if name in names]

    async def work(self) -> None:
        """Until the world is over. What was broken is mended before the next deed or soon after."""
        if not self._deeds:
            return
        while self.world.goes_on:
            await asyncio.sleep(self.random.expovariate(1 / self.world.options.calm))
            if not self.world.goes_on:
                return
            (deed,) = self.random.choices([deed for _, deed in self._deeds], [weight for weight, _ in self._deeds])
            self.world.trace.note("operator", deed=deed.__name__)
            await deed()
            await self._log_in()

    async def restart(self) -> None:
        """Start another replica and stop an old one; or stop it first, and be one fewer for a while."""
        world, starts_first = self.world, self.random.random() < 0.7
        old = self.random.choice(world.up() or [None])
        if starts_first:
            await world.start_replica()
        if old is not None:
            world.background(world.stop_replica(old))
        if not starts_first:
            await asyncio.sleep(self.random.uniform(0.5, 5))
            await world.start_replica()

    async def crash(self) -> None:
        up = self.world.up()
        if up:
            self.world.kill_replica(self.random.choice(up))
            await asyncio.sleep(self.random.uniform(0.1, 5))
            await self.world.start_replica()

    async def stall(self) -> None:
        """Freeze a replica, for a moment or for longer than others believe that it lives."""
        up = self.world.up()
        if not up:
            return
        replica = self.random.choice(up)
        replica.process.stall()
        await asyncio.sleep(self.random.choice((0.5, 3.0, 10.0, 10.0, 15.0, 45.0)))
        if replica.process.alive:
            replica.process.go_on()

    async def pause(self) -> None:
        """Pause an account, and resume it later."""
        account = self._account()
        if self.world.store.accounts[account].state in (State.ACTIVE, State.LIMITED):
            self.world.store.set_state(account, State.PAUSED)
            await asyncio.sleep(self.random.uniform(1, 20))
            if self.world.store.accounts[account].state is State.PAUSED:
                self.world.store.set_state(account, State.ACTIVE)

    async def rotate_key(self) -> None:
        """Give an account another token; the old one is refused from now on."""
        account = self._account()
        token = self.world.upstream.issue(self.world.store.accounts[account].name)
        await asyncio.sleep(self.random.uniform(0, 3))
        self.world.store.give_credentials(account, OpenAICredentials(token))

    async def expire_token(self) -> None:
        self.world.upstream.revoke(self.world.store.accounts[self._account()].name)

    async def limit(self) -> None:
        """An account is at its limit for a while."""
        name = self.world.store.accounts[self._account()].name
        until = self.world.wall() + self.random.choice((5, 20, 90))
        self.world.upstream.accounts[name].limited_until = until

    async def partition(self) -> None:
        """The way to an account is gone for a while."""
        name = self.world.store.accounts[self._account()].name
        self.world.network.go_dark(name)
        await asyncio.sleep(self.random.uniform(1, 30))
        self.world.network.go_bright(name)

    async def split(self) -> None:
        """Other replicas do not reach one replica for a while."""
        up = self.world.up()
        if up:
            name = self.random.choice(up).name
            self.world.between.go_dark(name)
            await asyncio.sleep(self.random.uniform(1, 20))
            self.world.between.go_bright(name)

    async def break_ledger(self) -> None:
        """The database is away, or slow, for a while."""
        store = self.world.store
        store.slow = self.random.choice((0.0, 0.0, 1.0, 4.0, 15.0))
        store.broken = not store.slow
        await asyncio.sleep(self.random.uniform(0.1, 6))
        store.slow, store.broken = 0.0, False

    async def idle_fault(self) -> None:
        """Something happens on lanes that nobody uses."""
        fault = self.world.idle_faults.draw(1.0)
        if fault is not None:
            name = self.world.store.accounts[self._account()].name
            text, mark, position = fault.partition("/")
            self.world.upstream.backend.faults.add(f"{text}@{name}#{self.random.randint(1, 3)}{mark}{position}")
            await asyncio.sleep(0.2)
            self.world.upstream.backend.faults.clear()

    async def all_out(self) -> None:
        """Every account is paused, and none takes a turn for a while."""
        store = self.world.store
        paused = [key for key, account in store.accounts.items() if account.state is State.ACTIVE]
        for key in paused:
            store.set_state(key, State.PAUSED)
        await asyncio.sleep(self.random.uniform(2, 6))
        for key in paused:
            if store.accounts[key].state is State.PAUSED:
                store.set_state(key, State.ACTIVE)

    async def _log_in(self) -> None:
        """Accounts that need a login get one before long."""
        for key, account in self.world.store.accounts.items():
            if account.state is State.NEEDS_LOGIN and self.random.random() < 0.5:
                self.world.store.give_credentials(key, OpenAICredentials(self.world.upstream.issue(account.name)))

    def _account(self) -> int:
        return self.random.choice(list(self.world.store.accounts))


NAMES = (
    "restart",
    "crash",
    "stall",
    "pause",
    "rotate-key",
    "expire-token",
    "limit",
    "partition",
    "split",
    "ledger",
    "idle-faults",
    "all-out",
)
