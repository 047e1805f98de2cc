"""Lanes and replicas as they are now: what each process tells of itself, and the order to retire a lane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Q

from accounts.models import Account
from dashboard.columns import DIGEST_SHOWN, Tone
from dashboard.overview.pool import dead_after
from gateway.models import ApiKey, Replica
from gateway.watch.models import Order
from gateway.watch.orders import RETIRE_LANE
from gateway.watch.snapshot import LiveLane, Snapshot
from gateway.watch.store import snapshots

# The pages and their templates; the names are those of their places in the page.
PROCESS_PAGES: Mapping[str, str] = {name: f"dashboard/processes/{name}.html" for name in ("lanes", "replicas")}
SHOWN_ORDERS = 8
# Replicas that ended so long ago are not shown any more.
RECENT = timedelta(days=1)
# The words of `gateway.upstream.lane`, which is not imported for them: it brings the whole network along.
OPEN, BUSY = "open", "busy"
PHASE_TONES: Mapping[str, Tone] = {
    "connecting": Tone.WARNING,
    OPEN: Tone.GOOD,
    BUSY: Tone.BUSY,
    "retiring": Tone.OFF,
}


@dataclass(frozen=True, slots=True)
class LaneRow:
    """One lane for the table. Ages are seconds, None where they do not apply."""

    replica: UUID
    process: str
    account: str
    key: str
    session: str
    tone: Tone
    lane: LiveLane
    age: float | None
    idle: float | None

    @property
    def order(self) -> str:
        """What names the lane in an order to retire it."""
        return f"{self.replica}:{self.lane.generation}"

    @property
    def name(self) -> str:
        """The session's name as the list of sessions shows it; empty for a lane of the client's own socket."""
        return self.lane.session.partition(":")[2][:DIGEST_SHOWN]

    @property
    def digest(self) -> str:
        """The whole of that name, by which the session is found."""
        return self.lane.session.partition(":")[2]

    @property
    def named_by(self) -> str:
        """The kind of the session."""
        return self.lane.session.partition(":")[0]

    @property
    def can_retire(self) -> bool:
        return self.lane.phase in (OPEN, BUSY)


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """One process for its page."""

    replica: Replica
    state: str
    tone: Tone
    up: float
    silent: float
    snapshot: Snapshot


class Processes:
    """Lanes and replicas at `now`."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self._live = snapshots(now, dead_after())
        started = Q(started_at__gt=now - RECENT) | Q(heartbeat_at__gt=now - RECENT)
        self._replicas = {each.id: each for each in Replica.objects.filter(started)}

    @property
    def lanes(self) -> list[LaneRow]:
        """Every lane that is told of, those that carry something first."""
        accounts = dict(Account.objects.values_list("id", "name"))
        keys = dict(ApiKey.objects.values_list("id", "name"))
        rows = [
            self._lane(replica, lane, accounts, keys)
            for replica, snapshot in self._live.items()
            for lane in snapshot.lanes
        ]
        return sorted(rows, key=lambda row: (row.lane.phase == OPEN, row.account, -(row.age or 0)))

    @property
    def untold(self) -> int:
        """Lanes that are open beside those in `lanes`: a process names only so many."""
        return sum(snapshot.open_lanes - len(snapshot.lanes) for snapshot in self._live.values())

    @property
    def replicas(self) -> list[ReplicaRow]:
        """Processes that are alive, then those of the last day that are not."""
        rows = [self._replica(replica) for replica in self._replicas.values()]
        return sorted(rows, key=lambda row: (row.tone is not Tone.GOOD, -row.replica.started_at.timestamp()))

    @property
    def orders(self) -> Sequence[Order]:
        """What operators have asked for lately."""
        return list(Order.objects.all()[:SHOWN_ORDERS])

    def _lane(self, replica: UUID, lane: LiveLane, accounts: Mapping[int, str], keys: Mapping[int, str]) -> LaneRow:
        now = self.now.timestamp()
        known = self._replicas.get(replica)
        return LaneRow(
            replica=replica,
            process=str(replica)[:8] if known is None else f"{known.host.split()[0]}:{known.process}",
            account=accounts.get(lane.account, f"account {lane.account}"),
            key=keys.get(lane.client, f"key {lane.client}"),
            session=lane.session or "the client's own socket",
            tone=PHASE_TONES.get(lane.phase, Tone.OFF),
            lane=lane,
            age=None if lane.opened_at is None else now - lane.opened_at,
            idle=None if lane.idle_since is None else now - lane.idle_since,
        )

    def _replica(self, replica: Replica) -> ReplicaRow:
        silent = (self.now - replica.heartbeat_at).total_seconds()
        if replica.stopped_at is not None:
            state, tone = "stopped", Tone.OFF
        elif silent > dead_after().total_seconds():
            state, tone = "dead", Tone.BAD
        else:
            state, tone = "alive", Tone.GOOD
        ended = replica.stopped_at or self.now
        up = (ended - replica.started_at).total_seconds()
        return ReplicaRow(replica, state, tone, up, silent, self._live.get(replica.id, Snapshot()))


def ask_to_retire(named: str, by: str) -> Order | None:
    """Ask the lane's replica to retire the lane that a `LaneRow.order` names; None for what names no lane."""
    replica, _, generation = named.partition(":")
    try:
        return Order.objects.create(replica=UUID(replica), what=RETIRE_LANE, lane=int(generation), by=by[:150])
    except ValueError:
        return None
