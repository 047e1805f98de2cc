"""One world from one seed: an upstream, replicas, clients and an operator on a simulated network, and its watchers."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import replace
from random import Random
from typing import Any

from accounts.registry import StateChange
from gateway.runtime import Runtime
from gateway.simulator.backend import Request
from gateway.simulator.faults import Faults
from gateway.simulator.observed import RequestRecord
from gateway.simulator.plan import Outcome
from gateway.turns.dispatch import FAULTS as FAULTS_OF_RESPONSES
from gateway.turns.record import TurnRecord
from tests.sim import http_network, inhabitants, operator
from tests.sim.book import Arrival, Asked, Book, mark_of, previous_of
from tests.sim.coverage import Coverage
from tests.sim.invariants import INVARIANTS, Invariant
from tests.sim.loop import Process, SimLoop, sim_clock
from tests.sim.network import Connection, Network, Weather
from tests.sim.options import TUNABLES, Options, Result, Violation
from tests.sim.planted import NOTHING, PLANTED
from tests.sim.replicas import Replica, real_runtime
from tests.sim.store import Row, SimStore, Witness, in_process
from tests.sim.trace import Trace
from tests.sim.upstream import IDLE_FAULTS, Dice, SimRefresher, Upstream, WatchedBackend

# Seconds between two looks at everything.
LOOK = 0.25


class World(Witness):
    """Builds everything, runs it until the turns are done, and lets the invariants watch."""

    def __init__(
        self,
        options: Options,
        loop: SimLoop,
        progress: Callable[[World], None] = lambda _: None,
    ) -> None:
        self.options = options
        self.loop = loop
        self.tunables = TUNABLES
        self.violation: Violation | None = None
        self.failure: BaseException | None = None
        self.coverage = Coverage()
        self.book = Book()
        self.trace = Trace(loop.time)
        self._planted = PLANTED[options.plant] if options.plant else NOTHING
        self._progress = progress
        self.forwarded = 0
        self._number = 0
        self._processes: list[Process] = []
        self._over = asyncio.Event()
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._build()

    def random(self, name: str) -> Random:
        """A source of randomness of its own for each part, so that leaving one out changes no other."""
        return Random(f"{self.options.seed} {name}")

    def _build(self) -> None:
        faults, chance = self.options.faults, self.options.chance
        self.clock = sim_clock(self.random("gateway"))
        self.wall = self.clock.wall
        bad = 0.02 if "network" in faults else 0.0
        self.network = Network(self.random("network"), weather(bad))
        self.loop.network = self.network
        self.between = Network(self.random("between replicas"), weather(bad * self._planted.strain))
        http_network.tell_time(self.loop.time)
        self.store = SimStore(self.random("store"), self.wall, self, TUNABLES.lease_ttl)
        upstream_faults = Faults()
        clock = replace(self.clock, random=self.random("upstream"))
        backend = WatchedBackend(
            upstream_faults, clock, self.random("faults"), faults, chance, self._arrived, self._ended_upstream
        )
        self.upstream = Upstream(backend, upstream_faults, self.random("accounts"))
        self.idle_faults = Dice(self.random("idle faults"), IDLE_FAULTS, faults)
        self.replicas: list[Replica] = []
        self.invariants: list[Invariant] = [each(self) for each in INVARIANTS]
        names = frozenset(each.partition(":")[2] for each in faults if each.startswith("operator:"))
        self._operator = operator.Operator(self, self.random("operator"), names)
        inhabitants.add_accounts(self.store, self.upstream)
        self.clients = inhabitants.make_clients(self)

    # Running.

    @property
    def now(self) -> float:
        return self.loop.time()

    @property
    def goes_on(self) -> bool:
        return self.violation is None and self.book.count < self.options.turns

    async def run(self) -> None:
        """Live until every turn is asked and answered, or a promise is broken."""
        await self.upstream.start()
        for _ in range(self.options.replicas):
            await self.start_replica()
        self._lives = [self.background(client.live()) for client in self.clients]
        self.background(self._operator.work())
        self.background(self._look())
        self.background(self._finish())
        await self._over.wait()
        if self.failure is not None:
            raise self.failure

    def result(self, cpu_seconds: float) -> Result:
        """What has come of it until now."""
        violation = self.violation
        return Result(
            options=self.options,
            digest=self.trace.digest,
            turns=self.book.count,
            events=self.trace.count,
            seconds=self.now,
            cpu_seconds=cpu_seconds,
            coverage=self.coverage,
            violation=violation,
            forwarded=self.forwarded,
            timeline=[] if violation is None else self.trace.timeline(violation.about - {""}),
            everything=self.trace.everything,
        )

    def bury(self) -> None:
        """Let what is left end, the dead too, so that no collector has to: nobody watches any more."""
        self.invariants.clear()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        for process in self._processes:
            process.alive = True
            process.go_on()
        self.loop.run_until_complete(all_ended(self.loop))

    def background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            error = task.exception()
            assert error is not None
            self.failure = error
            self._over.set()

    async def _look(self) -> None:
        looks = 0
        while not self._over.is_set():
            await asyncio.sleep(LOOK)
            looks += 1
            for invariant in self.invariants:
                invariant.looked()
            self.book.tidy(self.now)
            if looks % 40 == 0:
                self._progress(self)

    async def _finish(self) -> None:
        """When all turns are asked: wait for their ends, stop what runs, and check that nothing is left."""
        while self.goes_on:
            await asyncio.sleep(0.5)
        self.store.broken = False
        for replica in self.up():
            if replica.process.stalled:
                replica.process.go_on()
        begun = self.now
        while self.violation is None and self._unfinished() and self.now - begun < 500:
            await asyncio.sleep(0.5)
        # Clients that were idle leave, and what the ledger still has to write is written.
        await asyncio.sleep(3)
        if self.violation is None:
            for invariant in self.invariants:
                invariant.finished()
            for replica in self.up():
                await self.stop_replica(replica)
        self._over.set()

    def _unfinished(self) -> bool:
        # That a client has vanished is heard late, and until then its turn goes on.
        held = any(replica.runtime.permits.held for replica in self.up())
        asked = any(not asked.over for asked in self.book.open.values())
        return held or asked or not all(each.done() for each in self._lives)

    # Replicas.

    def up(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.state == "up"]

    def balance(self, random: Random, session: str | None) -> Replica | None:
        """Where a new connection goes: mostly by its session, as a balancer that hashes does."""
        well = [replica for replica in self.replicas if replica.seems_well(self.now)]
        up = well or self.up() or [replica for replica in self.replicas if replica.takes]
        if not up:
            return None
        if session is not None and random.random() < 0.9:
            return up[int(hashlib.sha256(session.encode()).hexdigest(), 16) % len(up)]
        return random.choice(up)

    async def start_replica(self) -> None:
        """Start a replica, again and again until the store lets one."""
        started = False
        while not started:
            self._number += 1
            replica = Replica(self._number, self._runtime, self.between)
            self._processes.append(replica.process)
            started = await replica.start()
            self.trace.note("replica is up" if started else "replica did not start", replica=replica.name)
            if not started:
                await asyncio.sleep(1.0)
        self.replicas.append(replica)

    def _runtime(self) -> Runtime:
        networks = (self.network, self.between)
        return real_runtime(*networks, self.store, self.clock, self.tunables, self._refresher, self._planted)

    def _refresher(self) -> SimRefresher:
        return SimRefresher(self.upstream, self.store, self.random("issuer"))

    async def stop_replica(self, replica: Replica) -> None:
        self.trace.note("replica stops", replica=replica.name)
        await replica.stop()
        self.trace.note("replica has stopped", replica=replica.name)
        for invariant in self.invariants:
            invariant.stopped(replica)
        self.replicas.remove(replica)

    def kill_replica(self, replica: Replica) -> None:
        self.trace.note("replica dies", replica=replica.name)
        replica.kill()
        self.replicas.remove(replica)

    def connection(self, accepted_as: int) -> Connection | None:
        return self.network.accepted.get(accepted_as)

    # What is noticed; each is noted in the trace and told to the invariants.

    def violated(self, name: str, text: str, asked: Asked | None, traceback: str = "") -> None:
        if self.violation is None:
            about = frozenset() if asked is None else frozenset({asked.mark, asked.row_id[:8]})
            self.trace.note("VIOLATION", name=name, text=text)
            self.violation = Violation(name, text, self.now, self.book.count, about, traceback)
            self._over.set()

    def later(self, check: Callable[[], None]) -> None:
        """Check something when the tasks that are ready now have long run."""
        self.loop.call_later(1.0, check, context=Context())

    def asked(self, asked: Asked) -> Asked:
        self.book.ask(asked)
        self.trace.note("asks", turn=asked.mark, by=asked.transport, previous=asked.previous, replica=asked.replica)
        return asked

    def ended(self, asked: Asked, how: str) -> None:
        asked.ends.append(how)
        asked.ended_at = self.now
        self.trace.note("ends", turn=asked.mark, how=how)
        for invariant in self.invariants:
            invariant.ended(asked, how)

    def told(self, asked: Asked, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.trace.note("is told", turn=asked.mark, status=status)
        for invariant in self.invariants:
            invariant.told(asked, status)
            invariant.heard(asked, repr(headers).encode())

    def heard(self, asked: Asked, data: bytes) -> None:
        for invariant in self.invariants:
            invariant.heard(asked, data)

    def _arrived(self, request: Request, record: RequestRecord) -> None:
        asked = self.book.find(mark_of(request.raw))
        if asked is None:
            self.violated("nothing lost", f"a request came to {record.account} that no client has asked", None)
            return
        connection = self.connection(record.connection)
        process = None if connection is None else connection.client.process
        arrival = Arrival(
            record=record,
            account=record.account,
            replica="" if process is None else process.name,
            connection=record.connection,
            previous=previous_of(request.raw),
            at=self.now,
        )
        self.book.arrive(asked, arrival)
        self.trace.note(
            "arrives", turn=asked.mark, account=record.account, connection=record.connection, previous=arrival.previous
        )
        for invariant in self.invariants:
            invariant.arrived(asked, arrival)

    def _ended_upstream(self, record: RequestRecord) -> None:
        left = self.book.leave(record)
        if left is None:
            return
        asked, arrival = left
        arrival.refused = record.status is not None or record.outcome is Outcome.REFUSED
        faults = " ".join(record.faults)
        self.trace.note("is over", turn=asked.mark, account=record.account, outcome=record.outcome, faults=faults)
        for invariant in self.invariants:
            invariant.over(asked, arrival)

    def written(self, row: Row, before: Row | None, record: TurnRecord | None) -> None:
        asked = self.book.by_row.get(str(row["id"]))
        if asked is None and record is not None:
            asked = self.book.find(mark_of(record.request.body.raw))
            if asked is not None:
                asked.row_id = str(row["id"])
                self.book.by_row[asked.row_id] = asked
        outcome, cause = row["outcome"], row["cause"]
        facts = {"account": row["account_name"], "outcome": outcome, "cause": cause, "code": row["code"]}
        self.trace.note("is written", turn=self._mark(str(row["id"])), **facts)
        if asked is None:
            # The turn of a client that sends nonsense, or one that was over long ago.
            return
        asked.row = row
        if outcome and asked.settled_at is None:
            asked.settled_at = self.now
            self.forwarded += row["via"] is not None
            self._cover(row)
        for invariant in self.invariants:
            invariant.written(asked, row, before, record)
        if outcome:
            self.later(lambda: self.store.forget(row["id"]))

    def _mark(self, row_id: str) -> str:
        """A turn by its client's name for it, or by the beginning of the gateway's as long as that is not known."""
        asked = self.book.by_row.get(row_id)
        return row_id[:8] if asked is None else asked.mark

    def _cover(self, row: Row) -> None:
        if row["outcome"] == "failed" and row["code"] in FAULTS_OF_RESPONSES:
            # What a response failed of is no failure of its turn: the client got it as it came.
            self._meet("started" if row["streaming_ms"] is None else "streaming", "response_failed")
        for attempt in row["attempts"]:
            if "cause" in attempt:
                self._meet(attempt["phase"], attempt["cause"])

    def _meet(self, phase: str, cause: str) -> None:
        if not self.coverage.meet(str(phase), str(cause)):
            self.violated("pairs that can be", f"a turn met {cause} while it was {phase}", None)

    def state_changed(self, change: StateChange) -> None:
        asked = self.book.by_row.get(str(change.by))
        self.trace.note("account changes", turn=self._mark(str(change.by)), account=change.account, state=change.state)
        for invariant in self.invariants:
            invariant.state_changed(change, asked)

    def logged(self, event: dict[str, Any]) -> None:
        """The gateway has logged something."""
        name = str(event.get("event"))
        told = {key: str(event[key]) for key in ("turn", "account", "stage", "cause", "code", "error") if key in event}
        if "turn" in told:
            told["turn"] = self._mark(told["turn"])
        self.trace.note(f"log {name}", **told, replica=in_process())
        if name == "dispatch_failed":
            self._meet(str(event["stage"]), str(event["cause"]))
        for invariant in self.invariants:
            invariant.logged(event)
            if name == "circuit_changed":
                invariant.circuits_changed(event["circuits"], self.book.by_row.get(str(event["turn"])))


def weather(bad: float) -> Weather:
    """What happens to connections, `bad` being the chance of each evil."""
    return Weather(refuse=bad, hang=bad / 2, dies_on_accept=bad / 4, half_open=bad, reset=bad)


async def all_ended(loop: SimLoop) -> None:
    for _ in range(20):
        others = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
        if not others:
            return
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=50)
    raise RuntimeError(f"tasks that cannot be ended: {asyncio.all_tasks(loop)}")
