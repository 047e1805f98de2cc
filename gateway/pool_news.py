"""What follows when accounts of the pool came, went or changed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from accounts.registry import PoolChange, Registry
from accounts.states import State
from gateway.clock import Clock
from gateway.turns.health import Health, TokenRefresher
from gateway.turns.slots import AccountStreams
from gateway.upstream.http import HttpTransport
from gateway.upstream.pool import LanePool

# Nothing may be sent for an account in one of these, not even on a lane that is open.
OUT_OF_USE = (State.PAUSED, State.DISABLED, State.NEEDS_LOGIN)


class PoolNews:
    """Closes connections of accounts and proxies that may not be used any more, and lets waiting turns choose again.

    Give `heard` to the registry, and await `settled` at the end.
    """

    def __init__(
        self,
        registry: Registry,
        health: Health,
        clock: Clock,
        streams: AccountStreams,
        pool: LanePool,
        http: HttpTransport,
        refresher: TokenRefresher,
    ) -> None:
        self._registry = registry
        self._health = health
        self._clock = clock
        self._streams = streams
        self._pool = pool
        self._http = http
        self._refresher = refresher
        self._closers: set[asyncio.Future[None]] = set()

    def heard(self, change: PoolChange) -> None:
        """The pool is another one now."""
        gone = {account.id for account in change.removed}
        gone |= {after.id for _, after in change.changed if after.state in OUT_OF_USE}
        gone |= {
            after.id
            for before, after in change.changed
            if (before.credentials, before.proxy) != (after.credentials, after.proxy)
        }
        for account_id in gone:
            self._background(self._pool.retire_account(account_id))
        self._leave_proxies(change)
        self._learn_accounts(change)
        self._streams.pool_changed()

    async def settled(self) -> None:
        """Wait until what had to be closed is."""
        await asyncio.gather(*self._closers, return_exceptions=True)

    def _leave_proxies(self, change: PoolChange) -> None:
        """Connections by a proxy that no account has any more are closed, when what runs on them has ended."""
        before = {account.proxy for account in change.removed} | {account.proxy for account, _ in change.changed}
        proxies = {account.proxy for account in self._registry.accounts if account.proxy is not None}
        if before - proxies - {None}:
            self._background(self._http.keep(proxies))
            self._background(self._refresher.keep(proxies))

    def _learn_accounts(self, change: PoolChange) -> None:
        """What the store knows of usage and circuits goes along with what was seen here; what left is forgotten."""
        health, now = self._health, self._clock.wall()
        for account in (*change.added, *(after for _, after in change.changed)):
            health.quotas.load(account.id, account.quota)
            health.circuits.learn(account.id, account.circuit, now)
        health.keep({account.id for account in self._registry.accounts})

    def _background(self, work: Coroutine[None, None, None]) -> None:
        """Closing takes a moment that nobody waits for before the end."""
        task = asyncio.ensure_future(work)
        self._closers.add(task)
        task.add_done_callback(self._closers.discard)
