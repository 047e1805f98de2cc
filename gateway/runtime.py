"""One gateway process put together: everything that traffic needs, started and stopped in order.

A runtime belongs to one event loop. `start` it before the first request; at the end `drain`, then `stop`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime, timedelta

import structlog
from django.db import DatabaseError

from accounts import store as accounts_store
from accounts.registry import AccountSnapshot, PoolChange, Registry, StateChange, Timing
from accounts.states import State
from gateway import store
from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.consumers.base import Check, Gate
from gateway.continuity.sessions import SessionTable
from gateway.database import DatabaseThreads
from gateway.errors import Stopping
from gateway.keys import KeyRing
from gateway.turns import ledger_store
from gateway.turns.carriage import Carriage
from gateway.turns.catalogue import Catalogue
from gateway.turns.dispatch import Engine
from gateway.turns.health import Health
from gateway.turns.ledger import Ledger
from gateway.turns.permits import Permits
from gateway.turns.record import TurnRecord
from gateway.turns.routing import Router
from gateway.turns.slots import AccountStreams
from gateway.upstream.connection import WebSocketDialer
from gateway.upstream.http import HttpTransport
from gateway.upstream.pool import LanePool

log = structlog.get_logger("gateway.runtime")

UPKEEP_INTERVAL = 1.0
# A replica whose heartbeat is older is dead: three missed beats of ten seconds.
DEAD_AFTER = timedelta(seconds=30)
STALLED_AFTER = 2.0
DATABASE_PATIENCE = 2.0


class Runtime:
    """The running gateway of one event loop."""

    def __init__(self, tunables: Tunables, token_keys: Sequence[str], clock: Clock | None = None) -> None:
        self.id = uuid.uuid4()
        self._tunables = tunables
        self._token_keys = token_keys
        self._clock = clock or Clock()
        self._database = DatabaseThreads()
        self._used_keys: dict[int, datetime] = {}
        self._stopping = False
        self._last_tick = self._clock.monotonic()
        self._tasks: list[asyncio.Task[None]] = []
        self._closers: set[asyncio.Future[None]] = set()
        self._build()

    def _build(self) -> None:
        t, clock = self._tunables, self._clock
        self.keys = KeyRing()
        self.registry = Registry(
            self._load_accounts, self._persist_state, Timing(wall=clock.wall, monotonic=clock.monotonic)
        )
        self.permits = Permits(t, clock)
        self.pool = LanePool(t, clock, WebSocketDialer(t, clock))
        self.http = HttpTransport(t, clock)
        self.ledger = Ledger(self._write_turns)
        streams = AccountStreams(clock, t.admission_wait)
        router = Router(self.registry, SessionTable(t.soft_session_ttl), streams, self.pool, clock)
        self.engine = Engine(
            tunables=t,
            clock=clock,
            router=router,
            carriage=Carriage(router, self.pool, self.http),
            pool=self.pool,
            ledger=self.ledger,
            health=Health(self.registry, clock),
            catalogue=Catalogue(self.registry, self.http, clock),
        )
        self.gate = Gate(self.keys, self.permits, self.engine, self._note_use, self.readiness)
        self.registry.on_change(lambda change: self._pool_changed(change, streams))

    async def start(self) -> None:
        """Load what traffic reads from memory and begin upkeep; raises Django's database errors."""
        await self._database.run(store.register_replica, self.id, datetime.now(UTC))
        interrupted = await self._database.run(ledger_store.close_interrupted, datetime.now(UTC), DEAD_AFTER)
        if interrupted:
            log.warning("interrupted_turns_closed", turns=interrupted)
        self.keys.replace(await self._database.run(store.load_keys))
        await self.registry.refresh()
        self._spawn(self.ledger.run())
        self._spawn(self.registry.run())
        self._spawn(self._upkeep())

    async def drain(self) -> None:
        """Take no new turn and let those that run finish; after `DRAIN_TIMEOUT` they are ended, each with an answer."""
        self._stopping = True
        self.permits.stop()
        try:
            async with asyncio.timeout(self._tunables.drain_timeout):
                await self.permits.all_back()
        except TimeoutError:
            for turn in tuple(self.engine.running):
                turn.abort(Stopping("The gateway is stopping.", retry_after=2))
            async with asyncio.timeout(self._tunables.close_timeout * 4):
                await self.permits.all_back()

    async def stop(self) -> None:
        """Close what is left, in order: lanes, ledger, upkeep, and the HTTP connections last."""
        await self.pool.close()
        self.ledger.stop()
        ledger, *others = self._tasks
        await ledger
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self.registry.flush()
        await self._database.run(store.unregister_replica, self.id)
        await self.http.close()
        self._database.close()

    async def readiness(self) -> Sequence[Check]:
        """Every condition of taking turns, each checked now."""
        now = self._clock.monotonic()
        usable = any(account.state_at(self._clock.wall()) is State.ACTIVE for account in self.registry.accounts)
        lag = now - self._last_tick - UPKEEP_INTERVAL
        return [
            Check("database", await self._can_write(), "the heartbeat cannot be written"),
            Check(
                "migrations",
                await self._is_migrated(),
                "the database lacks migrations; run manage.py migrate",
            ),
            Check("accounts", usable, "no account is usable"),
            Check("event_loop", lag < STALLED_AFTER, f"the event loop is {lag:.1f} s late"),
            Check("running", not self._stopping, "the gateway is stopping"),
        ]

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    async def _upkeep(self) -> None:
        """Once a second: keys, then lanes; every tenth time the heartbeat and when keys were used."""
        tick = 0
        while True:
            await asyncio.sleep(UPKEEP_INTERVAL)
            self._last_tick = self._clock.monotonic()
            tick += 1
            await self.pool.sweep()
            try:
                self.keys.replace(await self._database.run(store.load_keys))
                if tick % 10 == 0:
                    used, self._used_keys = self._used_keys, {}
                    await self._database.run(store.beat, self.id)
                    await self._database.run(store.mark_used, used)
            except DatabaseError as error:
                # What is in memory stays good; the next second tries again.
                log.error("upkeep_failed", error=type(error).__name__)

    async def _can_write(self) -> bool:
        try:
            async with asyncio.timeout(DATABASE_PATIENCE):
                return await self._database.run(store.beat, self.id)
        except (DatabaseError, TimeoutError):
            return False

    async def _is_migrated(self) -> bool:
        try:
            async with asyncio.timeout(DATABASE_PATIENCE):
                return await self._database.run(store.unapplied_migrations) == 0
        except (DatabaseError, TimeoutError):
            return False

    async def _load_accounts(self, known: Sequence[AccountSnapshot]) -> Sequence[AccountSnapshot] | None:
        return await self._database.run(
            accounts_store.load_snapshots, self._token_keys, self._tunables.streams_per_account, known
        )

    async def _persist_state(self, change: StateChange) -> bool:
        return await self._database.run(accounts_store.change_state, change)

    async def _write_turns(self, records: Sequence[TurnRecord]) -> None:
        await self._database.run(ledger_store.write, self.id, records)

    def _note_use(self, key_id: int) -> None:
        self._used_keys[key_id] = datetime.now(UTC)

    def _pool_changed(self, change: PoolChange, streams: AccountStreams) -> None:
        """Idle lanes of accounts that may not be used any more are closed, and waiting turns choose again."""
        gone = {account.id for account in change.removed}
        gone |= {
            after.id for _, after in change.changed if after.state in (State.PAUSED, State.DISABLED, State.NEEDS_LOGIN)
        }
        gone |= {after.id for before, after in change.changed if before.credentials != after.credentials}
        for account_id in gone:
            self._background(self.pool.retire_account(account_id))
        streams.pool_changed()

    def _background(self, work: Coroutine[None, None, None]) -> None:
        """Closing lanes takes a moment; `stop` waits for it through the pool."""
        task = asyncio.ensure_future(work)
        self._closers.add(task)
        task.add_done_callback(self._closers.discard)
