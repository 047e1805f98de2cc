"""The promises of `docs/design.md`, each as something that is checked while a world runs.

An invariant is told what happens and calls `self.broken` when that must not be. `looked` comes several times a second
of the world's time, `finished` once, when nothing is left to do.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

from accounts.registry import StateChange
from accounts.states import State
from gateway.continuity.leases import LeaseKey
from gateway.simulator.plan import Outcome
from gateway.turns.record import TurnRecord
from gateway.turns.turn import RULES, Blame, Cause
from gateway.turns.turn import Outcome as TurnOutcome
from gateway.upstream.lane import LaneState
from tests.sim.book import Arrival, Asked
from tests.sim.network import Connection
from tests.sim.replicas import Replica
from tests.sim.store import Row

if TYPE_CHECKING:
    from tests.sim.world import World

# Causes that may count against an account.
# An account that alone cannot be reached, while others can, is one of them.
EVIDENCE = frozenset(str(rule.cause) for rule in RULES if rule.blame is Blame.EVIDENCE) | {str(Cause.CONNECT_FAILED)}
# The longest that a turn of a simulated world can take when nothing is wrong with the gateway.
PATIENCE = 400.0
# Bytes of one batch and one frame, which may come on top of a limit.
ALLOWANCE = 350_000


class Invariant:
    """One promise. The default is to notice nothing."""

    name: ClassVar[str]

    def __init__(self, world: World) -> None:
        self.world = world

    def broken(self, text: str, asked: Asked | None = None) -> None:
        self.world.violated(self.name, text, asked)

    def asked(self, asked: Asked) -> None: ...

    def ended(self, asked: Asked, how: str) -> None: ...

    def told(self, asked: Asked, status: int) -> None: ...

    def arrived(self, asked: Asked, arrival: Arrival) -> None: ...

    def over(self, asked: Asked, arrival: Arrival) -> None: ...

    def written(self, asked: Asked, row: Row, before: Row | None, record: TurnRecord | None) -> None: ...

    def state_changed(self, change: StateChange, asked: Asked | None) -> None: ...

    def circuits_changed(self, states: dict[str, str], asked: Asked | None) -> None: ...

    def logged(self, event: dict[str, Any]) -> None: ...

    def heard(self, asked: Asked, data: bytes) -> None: ...

    def looked(self) -> None: ...

    def stopped(self, replica: Replica) -> None: ...

    def finished(self) -> None: ...


class SettledOnce(Invariant):
    """One row, closed once and never opened again; one answer for the client."""

    name = "settled once"

    def written(self, asked: Asked, row: Row, before: Row | None, record: TurnRecord | None) -> None:
        if before is None or (before["outcome"] == TurnOutcome.INTERRUPTED and record is not None):
            # What others say of a silent process is a guess; one that comes back knows how its turn ended.
            return
        if before["outcome"] and before["outcome"] != row["outcome"]:
            self.broken(f"{asked.mark} was {before['outcome']} and became {row['outcome'] or 'open'}", asked)

    def ended(self, asked: Asked, how: str) -> None:
        if len(asked.ends) > 1:
            self.broken(f"{asked.mark} ended more than once for its client: {asked.ends}", asked)
        if how == "end without terminal":
            self.broken(f"the stream of {asked.mark} ended well, but without a terminal event", asked)

    def finished(self) -> None:
        for asked in self.world.book.open.values():
            if asked.row is not None and not asked.outcome:
                self.broken(f"the row of {asked.mark} is still open", asked)
            if not asked.ends:
                self.broken(f"{asked.mark} never ended for its client", asked)


class SentOnce(Invariant):
    """What may have run is never sent again."""

    name = "sent once"

    def arrived(self, asked: Asked, arrival: Arrival) -> None:
        for earlier in asked.arrivals[:-1]:
            if not earlier.refused:
                self.broken(
                    f"{asked.mark} came to {arrival.account} though {earlier.account} had it already "
                    f"({earlier.record.outcome})",
                    asked,
                )


class ContinuedWhereItBegan(Invariant):
    """A continuation reaches the connection, or for stored responses the account, that made the response."""

    name = "continued where it began"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._made: dict[str, tuple[str, int, bool]] = {}

    def over(self, asked: Asked, arrival: Arrival) -> None:
        response = arrival.record.response_id
        if response is not None and arrival.record.body is not None:
            self._made[response] = (arrival.account, arrival.record.connection, arrival.record.body.store is not False)
            if len(self._made) > 5000:
                del self._made[next(iter(self._made))]

    def arrived(self, asked: Asked, arrival: Arrival) -> None:
        if asked.previous is not None and arrival.previous != asked.previous:
            self.broken(f"{asked.mark} continues {asked.previous}, but was sent as {arrival.previous}", asked)
        made = self._made.get(arrival.previous or "")
        if made is None:
            return
        account, connection, stored = made
        if arrival.account != account:
            self.broken(f"{asked.mark} continues a response of {account} at {arrival.account}", asked)
        if not stored and arrival.record.connection != connection:
            self.broken(f"{asked.mark} continues on another connection of {account} than it began on", asked)


class NoMixing(Invariant):
    """The upstream's own rules find nothing of another account, and nothing else that a gateway must not send."""

    name = "no mixing of accounts"
    # A continuation may be one that the upstream has forgotten; a limit is a limit.
    FINE = frozenset({None, "previous_response_not_found", "usage_limit_reached"})

    def over(self, asked: Asked, arrival: Arrival) -> None:
        record = arrival.record
        # Over HTTP no upstream knows of prewarming; its refusal is silent at the client.
        prewarm = record.body is not None and record.body.generate is False and record.transport == "http"
        if record.outcome is Outcome.REFUSED and not record.faults and record.code not in self.FINE and not prewarm:
            self.broken(f"{arrival.account} refused {asked.mark} by its rules: {record.code}", asked)


class CapacityIsWorkAlive(Invariant):
    """Streams cover what the upstream runs, lanes cover sockets, and all of it comes back."""

    name = "capacity is work alive"

    def looked(self) -> None:
        running: Counter[tuple[str, str]] = Counter()
        for asked in self.world.book.open.values():
            for arrival in asked.arrivals:
                if arrival.record.running and self._held(arrival):
                    running[arrival.replica, arrival.account] += 1
        sockets: Counter[tuple[str, str]] = Counter()
        for connection in self.world.network.connections:
            process = connection.client.process
            if connection.client.open and process is not None and is_lane(connection):
                sockets[process.name, connection.host] += 1
        for replica in self.world.up():
            self._compare(replica, running, sockets)

    def _held(self, arrival: Arrival) -> bool:
        """Whether the gateway has not begun to give the connection up."""
        connection = self.world.connection(arrival.connection)
        return connection is not None and connection.client.open and not connection.broken

    def _compare(self, replica: Replica, running: Counter[tuple[str, str]], sockets: Counter[tuple[str, str]]) -> None:
        runtime = replica.runtime
        lanes = Counter(lane.key.account_id for lane in runtime.pool if lane.state is not LaneState.CLOSED)
        for account in self.world.store.accounts.values():
            key = (replica.name, account.name)
            active = runtime.streams.active(account.id)
            if not 0 <= active <= account.streams:
                self.broken(
                    f"{replica.name} counts {active} streams of {account.name}, which may have {account.streams}"
                )
            if active < running[key]:
                self.broken(f"{replica.name} counts {active} streams of {account.name}, which runs {running[key]}")
            if lanes[account.id] < sockets[key]:
                self.broken(
                    f"{replica.name} counts {lanes[account.id]} lanes to {account.name}: {sockets[key]} are open"
                )
            if lanes[account.id] > self.world.tunables.lanes_per_account:
                self.broken(f"{replica.name} has {lanes[account.id]} lanes to {account.name}")
        if runtime.permits.held > self.world.tunables.admission_turns:
            self.broken(f"{replica.name} holds {runtime.permits.held} permits")

    def finished(self) -> None:
        for replica in self.world.up():
            runtime = replica.runtime
            if runtime.permits.held or runtime.permits.waiting:
                self.broken(f"{replica.name} is idle, with {runtime.permits!r}")
            if runtime.streams.waiting or runtime.engine.running:
                self.broken(f"{replica.name} is idle, with {runtime.streams.waiting} turns that wait for a stream")
            for account in self.world.store.accounts.values():
                if runtime.streams.active(account.id):
                    self.broken(f"{replica.name} is idle, with streams on {account.name}")
            if any(lane.state not in (LaneState.OPEN, LaneState.CLOSED) for lane in runtime.pool):
                self.broken(f"{replica.name} is idle, with {runtime.pool!r}")

    def stopped(self, replica: Replica) -> None:
        runtime = replica.runtime
        if list(runtime.pool) or runtime.permits.held or runtime.engine.running:
            self.broken(f"{replica.name} has stopped, with {runtime.pool!r} and {runtime.permits!r}")
        left = [c for c in self.world.network.connections if c.client.process is replica.process and c.client.open]
        if left:
            self.broken(f"{replica.name} has stopped, with {len(left)} open connections")


def is_lane(connection: Connection) -> bool:
    """Whether the gateway speaks WebSocket on it, and has not only asked for it."""
    protocol = connection.client.get_protocol()
    return hasattr(protocol, "protocol")


class Fenced(Invariant):
    """What is retired publishes nothing, and a conversation has one owner."""

    name = "fenced"

    def looked(self) -> None:
        owners: dict[LeaseKey, str] = {}
        for replica in self.world.up():
            if not replica.process.stalled:
                self._look_at(replica, owners)

    def _look_at(self, replica: Replica, owners: dict[LeaseKey, str]) -> None:
        membership = replica.runtime.membership
        leases = {membership.lease_of(lane.key) for lane in replica.runtime.pool if lane.anchor is not None}
        for lease in leases:
            if lease is not None and membership.tenure(lease) is not None:
                other = owners.setdefault(lease, replica.name)
                if other != replica.name:
                    self.broken(f"{other} and {replica.name} both own the conversation {lease}")
        for lane in replica.runtime.pool:
            if lane.state in (LaneState.RETIRING, LaneState.CLOSED) and lane.anchor is not None:
                self.broken(f"{lane!r} of {replica.name} is the owner of {lane.anchor}")


class FairBlame(Invariant):
    """An account's state changes for what the account said, and its circuit for what it did."""

    name = "fair blame"
    STATES = {
        State.LIMITED: frozenset({Cause.USAGE_LIMIT, Cause.RATE_LIMIT, Cause.UNAUTHORIZED}),
        State.NEEDS_LOGIN: frozenset({Cause.UNAUTHORIZED}),
    }

    def state_changed(self, change: StateChange, asked: Asked | None) -> None:
        causes = self.STATES.get(change.state)
        if causes is None or asked is None:
            return
        met = causes_of(asked)
        if not met & {str(cause) for cause in causes}:
            self.broken(
                f"account {change.account} became {change.state} by {asked.mark}, which met {sorted(met)}", asked
            )

    def circuits_changed(self, states: dict[str, str], asked: Asked | None) -> None:
        if asked is None or "open" not in states.values():
            return
        self.world.later(lambda: self._check(states, asked))

    def _check(self, states: dict[str, str], asked: Asked) -> None:
        """Once the turn is written down: what opened the circuit must have been evidence, and true."""
        met = causes_of(asked) if asked.row is not None else set()
        if asked.row is not None and asked.outcome and not met & EVIDENCE and not self._failed(asked):
            self.broken(f"{asked.mark} opened the circuits {states}; it met {sorted(met)}", asked)

    def _failed(self, asked: Asked) -> bool:
        return asked.outcome == "failed"


def causes_of(asked: Asked) -> set[str]:
    """Every cause that a turn has met, in its row and in what it has been told since."""
    row = asked.row or {}
    attempts: list[dict[str, str]] = row.get("attempts") or []  # type: ignore[assignment]
    return {str(attempt["cause"]) for attempt in attempts if "cause" in attempt} | (
        {str(row.get("cause"))} - {"", "None"}
    )


class NothingLost(Invariant):
    """The ledger has a turn before the upstream has it, and says of it what the upstream says."""

    name = "nothing lost"

    def arrived(self, asked: Asked, arrival: Arrival) -> None:
        if asked.row is None:
            self.broken(f"{asked.mark} came to {arrival.account} and is in no ledger", asked)

    def written(self, asked: Asked, row: Row, before: Row | None, record: TurnRecord | None) -> None:
        outcome = row["outcome"]
        if outcome not in ("completed", "incomplete", "failed") or not asked.arrivals or row["cause"] == "internal":
            return
        last = asked.arrivals[-1]
        if row["account_name"] != last.account:
            self.broken(f"{asked.mark} ran on {last.account}; the ledger says {row['account_name']}", asked)
        if outcome == "completed" and row["response_id"] != last.record.response_id:
            self.broken(f"{asked.mark} is {last.record.response_id}; the ledger says {row['response_id']}", asked)

    def ended(self, asked: Asked, how: str) -> None:
        if how == "response.completed" and not asked.arrivals:
            self.broken(f"{asked.mark} was completed without the upstream", asked)


class NothingLeaks(Invariant):
    """No token or key in a log or an answer, no 401 or 403 of an account, no body in a log."""

    name = "nothing leaks"
    SECRETS = (b"sim-token-", b"pm_")
    IN_LOGS = ("sim-token-", "pm_", '"input"')

    def heard(self, asked: Asked, data: bytes) -> None:
        for secret in self.SECRETS:
            if secret in data:
                self.broken(f"{asked.mark} was shown {secret.decode()}…", asked)

    def told(self, asked: Asked, status: int) -> None:
        if status in (401, 403):
            self.broken(f"{asked.mark} was told {status}", asked)

    def logged(self, event: dict[str, Any]) -> None:
        text = repr(event)
        for secret in self.IN_LOGS:
            if secret in text:
                self.broken(f"the log {event.get('event')} shows {secret}")


class Explained(Invariant):
    """A closed row says what was tried, why it came to nothing, and when."""

    name = "explained"

    def written(self, asked: Asked, row: Row, before: Row | None, record: TurnRecord | None) -> None:
        if record is None or not row["outcome"]:
            return
        attempts = row["attempts"]
        if asked.arrivals and (not attempts or row["sent_ms"] is None):
            self.broken(f"the row of {asked.mark} does not say where it was sent", asked)
        if row["settled_ms"] is None:
            self.broken(f"the row of {asked.mark} does not say when it was settled", asked)
        if row["outcome"] in ("refused", "upstream_lost", "client_gone") and not row["cause"]:
            self.broken(f"the row of {asked.mark} is {row['outcome']} without a cause", asked)
        if row["outcome"] == "refused" and not row["code"]:
            self.broken(f"the row of {asked.mark} is refused without a code", asked)
        if any("chosen_from" not in attempt for attempt in attempts):
            self.broken(f"an attempt of {asked.mark} does not say what it was chosen from", asked)
        if row["cause"] == Cause.INTERNAL:
            self.broken(f"{asked.mark} met a defect", asked)


class Bounded(Invariant):
    """What waits in memory for clients, and for nobody, stays within its limits."""

    name = "bounded buffers"

    def looked(self) -> None:
        limits = self.world.tunables
        for replica in self.world.up():
            waiting = [
                lane.connection.waiting_bytes
                for lane in replica.runtime.pool
                if lane.state not in (LaneState.CONNECTING, LaneState.CLOSED)
            ]
            if max(waiting, default=0) > limits.client_buffer_bytes + ALLOWANCE:
                self.broken(f"{max(waiting)} bytes wait on one lane of {replica.name}")
            if sum(waiting) > limits.client_buffer_total + ALLOWANCE:
                self.broken(f"{sum(waiting)} bytes wait on the lanes of {replica.name}")
            if replica.runtime.ledger.unwritten > 2000:
                self.broken(f"{replica.runtime.ledger.unwritten} records of {replica.name} are not written")


class NothingWaits(Invariant):
    """Every turn ends in time, and nobody waits beside what is free."""

    name = "nothing waits past its timeout"
    # Seconds that something may be free while somebody waits for it: other replicas' news come once a second.
    MOMENT = 3.0

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._free_since: dict[tuple[str, str], float] = {}

    def looked(self) -> None:
        now = self.world.now
        for asked in self.world.book.open.values():
            if now - asked.at > PATIENCE and not asked.over:
                self.broken(f"{asked.mark} is not over after {now - asked.at:.0f} s (ends: {asked.ends})", asked)
        for replica in self.world.up():
            self._look_at(replica, now)

    def _look_at(self, replica: Replica, now: float) -> None:
        runtime = replica.runtime
        permits = runtime.permits
        share = runtime.membership
        idle = permits.waiting and permits.held < share.turns(self.world.tunables.admission_turns, permits.held)
        self._check(replica, "permits", bool(idle), now)
        wanted = {account for waiter in runtime.streams._queue for account in waiter.accounts}
        for account in self.world.store.accounts.values():
            active = runtime.streams.active(account.id)
            free = active < share.streams(account.id, account.streams, active)
            self._check(replica, account.name, free and account.id in wanted, now)

    def _check(self, replica: Replica, what: str, free: bool, now: float) -> None:
        key = (replica.name, what)
        if not free:
            self._free_since.pop(key, None)
        elif now - self._free_since.setdefault(key, now) > self.MOMENT:
            self.broken(f"{replica.name}: turns wait though {what} is free")


class NoDefects(Invariant):
    """Nothing is logged as a defect, and nothing reaches the event loop's handler of exceptions."""

    name = "no defects"
    DEFECTS = frozenset({"turn_defect", "ledger_defect", "close_failed", "answer_failed", "drain_incomplete"})

    def logged(self, event: dict[str, Any]) -> None:
        if event.get("event") in self.DEFECTS:
            asked = self.world.book.by_row.get(str(event.get("turn")))
            text = f"the gateway logged {event['event']}: {sys.exception()!r}"
            self.world.violated(self.name, text, asked, traceback.format_exc())

    def looked(self) -> None:
        for failure in self.world.loop.failures:
            self.broken(f"{failure.get('message')}: {failure.get('exception')!r}")


INVARIANTS: tuple[type[Invariant], ...] = (
    SettledOnce,
    SentOnce,
    ContinuedWhereItBegan,
    NoMixing,
    CapacityIsWorkAlive,
    Fenced,
    FairBlame,
    NothingLost,
    NothingLeaks,
    Explained,
    Bounded,
    NothingWaits,
    NoDefects,
)
