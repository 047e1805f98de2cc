"""Whether a process can take turns, condition by condition."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from accounts.registry import Registry
from accounts.states import State
from gateway.clock import Clock
from gateway.consumers.base import Check
from gateway.replicas.membership import Membership
from gateway.storage import Store, StoreError

# Seconds between two calls of `ticked`, and by how much one may be late.
TICK = 1.0
STALLED_AFTER = 2.0
STORE_PATIENCE = 2.0


class Readiness:
    """Checks every condition of taking turns when asked. Call `ticked` every `TICK` seconds, from the event loop."""

    def __init__(self, store: Store, clock: Clock, registry: Registry, membership: Membership) -> None:
        self._store = store
        self._clock = clock
        self._registry = registry
        self._membership = membership
        self._last_tick = clock.monotonic()
        self._stopping = False

    def ticked(self) -> None:
        """The event loop goes on."""
        self._last_tick = self._clock.monotonic()

    def stop(self) -> None:
        """No turn is taken any more."""
        self._stopping = True

    async def checks(self) -> Sequence[Check]:
        """All conditions, each looked at now."""
        lag = self._clock.monotonic() - self._last_tick - TICK
        usable = any(account.state_at(self._clock.wall()) is State.ACTIVE for account in self._registry.accounts)
        return [
            await self._check_database(),
            Check("migrations", await self._is_migrated(), "the database lacks migrations; run manage.py migrate"),
            Check("accounts", usable, "no account is usable"),
            Check("event_loop", lag < STALLED_AFTER, f"the event loop is {lag:.1f} s late"),
            Check("running", not self._stopping, "the gateway is stopping"),
        ]

    async def _check_database(self) -> Check:
        if not await self._can_write():
            return Check("database", False, "the heartbeat cannot be written")
        try:
            problem = await self._store.problem()
        except StoreError:
            problem = "the database cannot be looked at"
        return Check("database", not problem, problem)

    async def _can_write(self) -> bool:
        try:
            async with asyncio.timeout(STORE_PATIENCE):
                return await self._membership.beat()
        except (StoreError, TimeoutError):
            return False

    async def _is_migrated(self) -> bool:
        try:
            async with asyncio.timeout(STORE_PATIENCE):
                return await self._store.unapplied_migrations() == 0
        except (StoreError, TimeoutError):
            return False
