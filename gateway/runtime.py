"""One gateway process put together: everything that traffic needs, started and stopped in order.

A runtime belongs to one event loop. `start` it before the first request; at the end `drain`, then `stop`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import structlog

from accounts.circuit import CircuitState
from accounts.registry import PoolChange, Registry, Timing
from accounts.states import State
from gateway.chores import Chores
from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.consumers.base import Check, Gate
from gateway.continuity.sessions import SessionTable
from gateway.errors import LedgerUnavailable, Stopping
from gateway.keys import KeyRing
from gateway.storage import Store, StoreError
from gateway.turns.backlog import Backlogs
from gateway.turns.carriage import Carriage
from gateway.turns.catalogue import Catalogue
from gateway.turns.dispatch import Engine, Turn
from gateway.turns.health import Health, TokenRefresher
from gateway.turns.ledger import Ledger
from gateway.turns.permits import Permits
from gateway.turns.routing import Router
from gateway.turns.slots import AccountStreams
from gateway.upstream.connection import Dial
from gateway.upstream.http import HttpTransport
from gateway.upstream.pool import LanePool

log = structlog.get_logger("gateway.runtime")

UPKEEP_INTERVAL = 1.0
CHORES_INTERVAL = 5.0
# A replica whose heartbeat is older is dead: three missed beats of ten seconds.
DEAD_AFTER = timedelta(seconds=30)
STALLED_AFTER = 2.0
STORE_PATIENCE = 2.0
# Each look at other replicas' sessions reaches back this far, for clocks that differ and commits that come late.
SESSION_OVERLAP = 10.0


@dataclass(frozen=True, slots=True)
class Network:
    """How accounts are reached; a simulated network takes the place of either half."""

    dial: Dial
    http: HttpTransport
    refresher: TokenRefresher


class Runtime:
    """The running gateway of one event loop."""

    def __init__(
        self, tunables: Tunables, store: Store, clock: Clock, network: Network, chores: Chores | None = None
    ) -> None:
        self.id = uuid.uuid4()
        self._tunables = tunables
        self._store = store
        self._clock = clock
        self._used_keys: dict[int, datetime] = {}
        self._chores = chores
        self._stopping = False
        self._last_tick = clock.monotonic()
        self._tasks: list[asyncio.Task[None]] = []
        self._closers: set[asyncio.Future[None]] = set()
        self._build(network)

    def _build(self, network: Network) -> None:
        t, clock = self._tunables, self._clock
        timing = Timing(wall=clock.wall, monotonic=clock.monotonic)
        self.keys = KeyRing()
        self.registry = Registry(self._store.load_accounts, self._store.persist_state, timing)
        self.permits = Permits(t, clock)
        self.streams = AccountStreams(clock, t.admission_wait)
        self.pool = LanePool(t, clock, network.dial)
        self.http = network.http
        self.ledger = Ledger(partial(self._store.write_turns, self.id))
        self.sessions = SessionTable(t.soft_session_ttl)
        self._refresher = network.refresher
        health = Health(self.registry, network.refresher, clock, self._circuits_changed)
        router = Router(self.registry, health, self.sessions, self.streams, self.pool, clock, self._find_stored)
        running: set[Turn] = set()
        self.engine = Engine(
            replica=str(self.id),
            tunables=t,
            clock=clock,
            router=router,
            carriage=Carriage(router, self.pool, self.http),
            pool=self.pool,
            ledger=self.ledger,
            health=health,
            catalogue=Catalogue(self.registry, self.http, clock),
            running=running,
            backlogs=Backlogs(t.client_buffer_bytes, t.client_buffer_total, running),
        )
        self.gate = Gate(self.keys, self.permits, self.engine, self._note_use, self.readiness, sockets=set())
        self.registry.on_change(self._pool_changed)

    async def start(self) -> None:
        """Load what traffic reads from memory and begin upkeep; raises `StoreError`."""
        await self._store.register(self.id)
        report_interrupted(await self._store.close_interrupted(DEAD_AFTER))
        self.keys.replace(await self._store.load_keys())
        await self._learn_sessions(since=0.0)
        await self.registry.refresh()
        await self.http.warm_up()
        self._spawn(self.ledger.run())
        self._spawn(self.registry.run())
        self._spawn(self._upkeep())
        if self._chores is not None:
            self._spawn(self._keep_house(self._chores))

    async def drain(self) -> None:
        """Take no new turn and let those that run finish; after `DRAIN_TIMEOUT` they are ended, each with an answer."""
        self._stopping = True
        log.info("stopping", turns=len(self.engine.running), wait=self._tunables.drain_timeout)
        self.permits.stop()
        for socket in tuple(self.gate.sockets):
            socket.drain()
        try:
            async with asyncio.timeout(self._tunables.drain_timeout):
                await self.permits.all_back()
        except TimeoutError:
            for turn in tuple(self.engine.running):
                turn.abort(Stopping("The gateway is stopping.", retry_after=2))
            await self._wait_for_the_ended()

    async def _wait_for_the_ended(self) -> None:
        try:
            async with asyncio.timeout(self._tunables.close_timeout * 4):
                await self.permits.all_back()
        except TimeoutError:
            # A defect, but stopping goes on: the next start closes in the ledger what is still open there.
            log.error("drain_incomplete", turns=len(self.engine.running))

    async def stop(self) -> None:
        """Close what is left, in order: lanes, ledger, upkeep, and the HTTP connections last."""
        await self.pool.close()
        self.ledger.stop()
        ledger, *others = self._tasks
        await ledger
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.gather(*self._closers, return_exceptions=True)
        try:
            await self.registry.flush()
            await self._store.unregister(self.id)
        except StoreError as error:
            # The last marks are lost; whoever starts next finds this process dead and closes what it left open.
            log.error("stop_not_stored", error=type(error).__name__)
        await self._refresher.close()
        await self.http.close()
        self._store.close()

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
        """Once a second: lanes, then keys; every tenth time the heartbeat, dead processes, and when keys were used."""
        tick = 0
        while True:
            await asyncio.sleep(UPKEEP_INTERVAL)
            self._last_tick = self._clock.monotonic()
            tick += 1
            await self.pool.sweep()
            try:
                self.keys.replace(await self._store.load_keys())
                await self._learn_sessions(since=self._clock.wall() - SESSION_OVERLAP)
                if tick % 10 == 0:
                    used, self._used_keys = self._used_keys, {}
                    await self._store.beat(self.id)
                    report_interrupted(await self._store.close_dead(DEAD_AFTER))
                    await self._store.mark_used(used)
                    await self._store.mark_accounts_used(self.engine.router.take_used_accounts())
                    await self._store.save_quotas(self.engine.health.quotas.take_unsaved())
            except StoreError as error:
                # What is in memory stays good; the next second tries again.
                log.error("upkeep_failed", error=type(error).__name__)

    async def _keep_house(self, chores: Chores) -> None:
        """Do the chores for as long as this replica is the one that does them."""
        while True:
            await asyncio.sleep(CHORES_INTERVAL)
            try:
                if await self._store.leads(self.id, DEAD_AFTER):
                    await chores.do_due()
            except StoreError as error:
                log.error("chores_not_done", error=type(error).__name__)

    def _circuits_changed(self, states: Mapping[int, CircuitState], turn: uuid.UUID) -> None:
        log.warning("circuit_changed", turn=str(turn), circuits={str(key): str(value) for key, value in states.items()})
        self._background(self._note_circuits(states, turn))

    async def _note_circuits(self, states: Mapping[int, CircuitState], turn: uuid.UUID) -> None:
        try:
            await self._store.note_circuits(states, turn)
        except StoreError as error:
            # The event is lost, the circuit is not: it is in memory.
            log.error("circuit_not_noted", error=type(error).__name__)

    async def _learn_sessions(self, since: float) -> None:
        """Know what other replicas, or an earlier process, have written of conversations."""
        soft_since = self._clock.wall() - self._tunables.soft_session_ttl
        self.sessions.learn(await self._store.load_sessions(self.id, since, soft_since))

    async def _find_stored(self, client: int, response_id: str) -> int | None:
        try:
            return await self._store.find_response(client, response_id)
        except StoreError as error:
            message = "The ledger cannot be read, so the owner of the response is not known; nothing was sent."
            raise LedgerUnavailable(message, retry_after=2) from error

    async def _can_write(self) -> bool:
        try:
            async with asyncio.timeout(STORE_PATIENCE):
                return await self._store.beat(self.id)
        except (StoreError, TimeoutError):
            return False

    async def _is_migrated(self) -> bool:
        try:
            async with asyncio.timeout(STORE_PATIENCE):
                return await self._store.unapplied_migrations() == 0
        except (StoreError, TimeoutError):
            return False

    def _note_use(self, key_id: int) -> None:
        self._used_keys[key_id] = datetime.now(UTC)

    def _pool_changed(self, change: PoolChange) -> None:
        """Idle lanes of accounts that may not be used any more are closed, and waiting turns choose again."""
        gone = {account.id for account in change.removed}
        gone |= {
            after.id for _, after in change.changed if after.state in (State.PAUSED, State.DISABLED, State.NEEDS_LOGIN)
        }
        gone |= {after.id for before, after in change.changed if before.credentials != after.credentials}
        for account_id in gone:
            self._background(self.pool.retire_account(account_id))
        self._learn_accounts(change)
        self.streams.pool_changed()

    def _learn_accounts(self, change: PoolChange) -> None:
        """What the store knows of usage goes along with what was heard here; what left the pool is forgotten."""
        health = self.engine.health
        for account in (*change.added, *(after for _, after in change.changed)):
            health.quotas.load(account.id, account.quota)
        known = {account.id for account in self.registry.accounts}
        health.quotas.keep(known)
        health.circuits.keep(known)

    def _background(self, work: Coroutine[None, None, None]) -> None:
        """Closing lanes takes a moment; `stop` waits for it through the pool."""
        task = asyncio.ensure_future(work)
        self._closers.add(task)
        task.add_done_callback(self._closers.discard)


def report_interrupted(turns: int) -> None:
    """Log that the ledger had open turns of processes that are no more."""
    if turns:
        log.warning("interrupted_turns_closed", turns=turns)
