"""One gateway process put together: everything that traffic needs, started and stopped in order.

A runtime belongs to one event loop. `start` it before the first request; at the end `drain`, then `stop`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import structlog

from accounts.circuit import CircuitState
from accounts.circuits import Circuits
from accounts.registry import Registry, Timing
from gateway.chores import Chores
from gateway.circuits import CircuitKeeper
from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.consumers.base import Gate
from gateway.continuity.rules import SessionKey
from gateway.continuity.sessions import Departure, Session, SessionTable
from gateway.errors import LedgerUnavailable, Stopping
from gateway.forwarding.forwarder import Forwarder
from gateway.keys import KeyRing, KeySnapshot
from gateway.metering.meter import Meter
from gateway.metering.prices import PriceList
from gateway.pool_news import PoolNews
from gateway.readiness import TICK, Readiness
from gateway.replicas.membership import Membership, report_interrupted
from gateway.replicas.shares import Use
from gateway.storage import Store, StoreError
from gateway.turns.backlog import Backlogs
from gateway.turns.carriage import Carriage
from gateway.turns.catalogue import Catalogue
from gateway.turns.choosing import Chooser
from gateway.turns.dispatch import Engine, Turn
from gateway.turns.health import Health, TokenRefresher
from gateway.turns.ledger import Ledger
from gateway.turns.names import Names
from gateway.turns.permits import Permits
from gateway.turns.record import TurnRecord
from gateway.turns.routing import Router
from gateway.turns.slots import AccountStreams
from gateway.turns.stored import StoredCalls
from gateway.turns.ties import Records, Ties
from gateway.upstream.connection import Dial
from gateway.upstream.http import HttpTransport
from gateway.upstream.peers import PeerTransport
from gateway.upstream.pool import LanePool
from gateway.watch import live
from gateway.watch.reporter import Reporter

log = structlog.get_logger("gateway.runtime")

CHORES_INTERVAL = 5.0
# Each look at other replicas' sessions reaches back this far before the last one that succeeded, for clocks that differ
# and commits that come late.
SESSION_OVERLAP = 10.0


@dataclass(frozen=True, slots=True)
class Network:
    """How accounts, and other replicas, are reached; a simulated network takes the place of any part."""

    dial: Dial
    http: HttpTransport
    refresher: TokenRefresher
    peers: PeerTransport | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """The classes a runtime is made of; a simulation puts one that fails in the place of a real one."""

    permits: type[Permits] = Permits
    streams: type[AccountStreams] = AccountStreams
    pool: type[LanePool] = LanePool
    ledger: type[Ledger] = Ledger
    sessions: type[SessionTable] = SessionTable
    health: type[Health] = Health
    router: type[Router] = Router
    carriage: type[Carriage] = Carriage
    membership: type[Membership] = Membership


REAL_PARTS = Parts()


class Runtime:
    """The running gateway of one event loop."""

    def __init__(
        self,
        tunables: Tunables,
        store: Store,
        clock: Clock,
        network: Network,
        chores: Chores | None = None,
        parts: Parts = REAL_PARTS,
        signing_keys: Sequence[bytes] = (),
    ) -> None:
        self.id = clock.new_id()
        self._tunables = tunables
        self._store = store
        self._clock = clock
        self._used_keys: dict[int, datetime] = {}
        self._chores = chores
        self._learned_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._peers = network.peers or PeerTransport(tunables)
        self._signing_keys = signing_keys
        self._build(network, parts)

    def _build(self, network: Network, parts: Parts) -> None:
        t, clock = self._tunables, self._clock
        timing = Timing(wall=clock.wall, monotonic=clock.monotonic)
        self.keys = KeyRing()
        self.registry = Registry(self._store.load_accounts, self._store.persist_state, timing)
        self.meter = Meter(clock)
        self.membership = parts.membership(self.id, self._store, t, clock)
        self.readiness = Readiness(self._store, clock, self.registry, self.membership)
        self.permits = parts.permits(t, clock, self.meter, self.membership)
        self.prices, self.names = PriceList(), Names()
        self.streams = parts.streams(clock, t.admission_wait)
        self.pool = parts.pool(t, clock, network.dial, self.membership)
        self.http = network.http
        self.ledger = parts.ledger(self._write_turns)
        self.sessions = parts.sessions(t.soft_session_ttl)
        self._refresher = network.refresher
        circuits = Circuits(writer=str(self.id))
        self._circuits = CircuitKeeper(circuits, self._store)
        health = parts.health(self.registry, network.refresher, clock, circuits, self._report_circuits)
        chooser = Chooser(self.registry, health, self.streams, clock, t.selection_strategy)
        records = Records(self._find_stored, self._find_session, self._depart)
        ties = Ties(self.sessions, self.registry, self.pool, clock, records, t.migrate_conversations)
        router = parts.router(self.registry, chooser, ties, self.streams, clock)
        running: dict[Turn, None] = {}
        self.engine = Engine(
            replica=str(self.id),
            tunables=t,
            clock=clock,
            router=router,
            carriage=parts.carriage(router, self.pool, self.http),
            pool=self.pool,
            owned=self.membership,
            ledger=self.ledger,
            health=health,
            stored=StoredCalls(self.registry, router.ties, self.http, clock, self._find_maker),
            catalogue=Catalogue(self.registry, self.http, self.names, clock),
            running=running,
            backlogs=Backlogs(t.client_buffer_bytes, t.client_buffer_total, running),
            prices=self.prices,
        )
        forwarder = Forwarder(
            self.id,
            self._signing_keys,
            self._store,
            self.pool,
            clock,
            peers=lambda: self.membership.peers,
            tenure=self.membership.tenure,
        )
        self.gate = Gate(
            keys=self.keys,
            permits=self.permits,
            engine=self.engine,
            used=self._note_use,
            readiness=self.readiness.checks,
            sockets={},
            names=self.names,
            meter=self.meter,
            look_up_usage=self._look_up_usage,
            forwarder=forwarder,
            peers=self._peers,
            forwards={},
        )
        self._news = PoolNews(self.registry, health, clock, self.streams, self.pool, self.http, network.refresher)
        self.registry.on_change(self._news.heard)
        self.membership.watch(self.pool, self._use, self._limits_changed)
        snapshot = partial(live.take, self.permits, self.streams, self.pool, running, clock)
        self._reporter = Reporter(self.id, self._store, self.pool, snapshot)

    async def start(self, url: str = "") -> None:
        """Load what traffic reads from memory and begin upkeep; other replicas reach this one at `url`.

        Raises `StoreError`.
        """
        await self.membership.join(url)
        report_interrupted(await self._store.close_interrupted())
        await self._load_directory()
        await self._learn_sessions(since=0.0)
        await self.registry.refresh()
        await self.http.warm_up()
        self._spawn(self.ledger.run())
        self._spawn(self.registry.run())
        self._spawn(self._circuits.run())
        self._spawn(self._upkeep())
        self._spawn(self._reporter.run())
        if self._chores is not None:
            self._spawn(self._keep_house(self._chores))

    async def drain(self) -> None:
        """Take no new turn and let those that run finish; after `DRAIN_TIMEOUT` they are ended, each with an answer."""
        self.readiness.stop()
        self.permits.stop()
        for socket in tuple(self.gate.sockets):
            socket.drain()
        log.info(
            "stopping",
            turns=len(self.engine.running),
            lanes=self.pool.summary(),
            wait=self._tunables.drain_timeout,
        )
        await self._leave_idle()
        try:
            async with asyncio.timeout(self._tunables.drain_timeout):
                await self.permits.all_back()
        except TimeoutError:
            for turn in (*self.engine.running, *self.gate.forwards):
                turn.abort(Stopping("The gateway is stopping.", retry_after=2))
            await self._wait_for_the_ended()
        # Listening to a stored response is no turn: nothing is lost with it, and it is not waited for.
        for listening in tuple(self.gate.forwards):
            listening.abort(Stopping("The gateway is stopping.", retry_after=2))

    async def _leave_idle(self) -> None:
        """Let go of the conversations on which nothing runs, so that other replicas may carry them from now on."""
        try:
            await self.membership.leave_idle()
        except StoreError as error:
            log.error("leases_not_released", error=type(error).__name__)

    async def _wait_for_the_ended(self) -> None:
        try:
            async with asyncio.timeout(self._tunables.close_timeout * 4):
                await self.permits.all_back()
        except TimeoutError:
            # A defect, but stopping goes on: the next start closes in the ledger what is still open there.
            log.error("drain_incomplete", turns=len(self.engine.running), lanes=self.pool.summary())

    async def stop(self) -> None:
        """Close what is left, in order: lanes, ledger, upkeep, and the HTTP connections last."""
        await self.pool.close()
        self.ledger.stop()
        ledger, *others = self._tasks
        await ledger
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._news.settled()
        try:
            await self.registry.flush()
            await self._circuits.flush()
            await self._store.unregister(self.id)
        except StoreError as error:
            # The last marks are lost; whoever starts next finds this process dead and closes what it left open.
            log.error("stop_not_stored", error=type(error).__name__)
        await self._refresher.close()
        await self.http.close()
        await self._peers.close()
        self._store.close()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    async def _upkeep(self) -> None:
        """Once a second: lanes, other replicas, then keys; every tenth time when keys and accounts were used."""
        tick = 0
        while True:
            await asyncio.sleep(TICK)
            self.readiness.ticked()
            tick += 1
            await self.pool.sweep()
            try:
                await self.membership.tick()
                await self._load_directory()
                await self._learn_sessions(since=self._learned_at - SESSION_OVERLAP)
                if tick % 10 == 0:
                    used, self._used_keys = self._used_keys, {}
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
                if await self._store.leads(self.id):
                    await chores.do_due()
            except StoreError as error:
                log.error("chores_not_done", error=type(error).__name__)

    async def _load_directory(self) -> None:
        """Know the keys, what names they may use, what tokens cost, and what other processes count for them."""
        keys = await self._store.load_keys()
        self.keys.replace(keys)
        self.names.replace(await self._store.load_aliases())
        self.prices.replace(await self._store.load_prices())
        self.meter.watch(keys)
        watched, read_at = self.meter.watched, self._clock.monotonic()
        if watched:
            self.meter.learn(watched, await self._store.load_usage(self.id, watched, self._clock.wall()), read_at)

    async def _look_up_usage(self, key: KeySnapshot) -> None:
        """Know what other processes have counted for `key` by now; without the store, what was known stays."""
        read_at = self._clock.monotonic()
        try:
            elsewhere = await self._store.load_usage(self.id, {key.id}, self._clock.wall())
        except StoreError:
            return
        self.meter.learn({key.id}, elsewhere, read_at)

    async def _write_turns(self, records: Sequence[TurnRecord]) -> None:
        """Write turns and what has been counted, and learn what others have counted, all in one transaction."""
        tally, read_at = self.meter.take_tally(record.request.key.id for record in records), self._clock.monotonic()
        term = self.membership.prepare(records)
        try:
            committed = await self._store.write_turns(self.id, records, tally)
        except BaseException:  # whatever it was, nothing has been written
            self.meter.put_back(tally)
            raise
        self.membership.learn(committed.leases, term)
        self.meter.learn(tally.watched, committed.elsewhere, read_at)

    async def _learn_sessions(self, since: float) -> None:
        """Know what other replicas, or an earlier process, have written of conversations."""
        now = self._clock.wall()
        soft_since = now - self._tunables.soft_session_ttl
        self.sessions.learn(await self._store.load_sessions(self.id, since, soft_since))
        self._learned_at = now

    async def _find_stored(self, client: int, response_id: str) -> int | None:
        return await self._asked(self._store.find_response(client, response_id))

    async def _find_maker(self, client: int, response_id: str) -> int | None:
        return await self._asked(self._store.find_maker(client, response_id))

    async def _asked(self, asking: Awaitable[int | None]) -> int | None:
        try:
            return await asking
        except StoreError as error:
            raise _owner_unknown() from error

    async def _find_session(self, key: SessionKey) -> Session | None:
        try:
            return await self._store.find_session(key)
        except StoreError as error:
            raise _owner_unknown() from error

    async def _depart(self, departure: Departure) -> bool:
        """Ask the store, which must know first what turns have learned of the account."""
        try:
            await self.registry.flush()
            return await self._store.depart(self.id, departure)
        except StoreError as error:
            raise _owner_unknown() from error

    def _use(self) -> Use:
        """What this process holds of the limits that all share."""
        return Use(self.permits.held, self.permits.held_bytes, self.streams.use(), self.pool.use())

    def _limits_changed(self) -> None:
        """Other replicas came, went, or use more or less: this one's part of each limit is another now."""
        self.permits.share_changed()
        self.streams.share(self.membership.streams if self.membership.peers else None)

    def _note_use(self, key_id: int) -> None:
        self._used_keys[key_id] = datetime.fromtimestamp(self._clock.wall(), UTC)

    def _report_circuits(self, states: Mapping[int, CircuitState], turn: uuid.UUID) -> None:
        """Log that turns have changed circuits; the keeper writes it down."""
        named = {account_id: self.registry.get(account_id) for account_id in states}
        circuits = {
            str(account_id) if account is None else account.name: str(states[account_id])
            for account_id, account in named.items()
        }
        log.warning("circuit_changed", turn=str(turn), circuits=circuits)


def _owner_unknown() -> LedgerUnavailable:
    message = "The database cannot be used, so the owner of the conversation is not known; nothing was sent."
    return LedgerUnavailable(message, retry_after=2)
