"""The ledger in the database."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from gateway.continuity import lease_store
from gateway.continuity.leases import Written
from gateway.continuity.store import write_sessions
from gateway.metering.store import read_usage, take_turns, write_usage
from gateway.metering.usage import NO_TALLY, Tally
from gateway.models import Replica, Turn
from gateway.replicas.store import bury, dead, interrupt
from gateway.turns.ledger import Committed
from gateway.turns.record import TurnRecord
from gateway.turns.turn import Outcome, Phase
from gateway.upsert import Upsert
from gateway.watch import late

# What a column of whole numbers holds in every database; a larger count is stored as this.
MOST = 2**31 - 1
# What a turn's request says is the same in both of its writes, so that the second leaves the indexes of it alone.
TURNS = Upsert(
    Turn,
    unique=["id"],
    made_once=[
        *("replica", "via", "received_at", "key_id", "key_name", "session", "route", "downstream"),
        *("model", "asked_model", "operation", "request_bytes", "generated"),
    ],
)


def write(replica: uuid.UUID, ttl: timedelta, records: Sequence[TurnRecord], tally: Tally = NO_TALLY) -> Committed:
    """Insert or replace the rows of `records`, of their sessions and of `tally`, claim and publish, in one transaction.

    What other processes have counted for the keys that `tally` watches is read after everything is written and before
    it is committed, one process after the other: the later of two that write at once sees what the earlier has counted.

    Raises Django's database errors, and then nothing was written.
    """
    carried = [session for record in records for session in record.sessions]
    sessions = {session.key: session for session in sorted(carried, key=lambda session: session.used_at)}
    claims = {record.lease for record in records if record.lease is not None and needs_claim(record)}
    anchored = {
        record.request.id: (record.lease, record.tenure)
        for record in records
        if record.anchored and record.lease is not None and record.tenure is not None
    }
    with transaction.atomic():
        if sessions:
            # In one order everywhere, so that two replicas cannot wait for each other's rows.
            write_sessions(replica, sorted(sessions.values(), key=lambda session: str(session.key)))
        granted = lease_store.claim(replica, claims, ttl) if claims else {}
        rows = [values(replica, record) for record in records]
        now = timezone.now()
        recount = [*late_ends(rows, now), *lost_ends(rows, now - ttl)]
        if recount:
            late.note(recount)
        TURNS.write(rows)
        fenced = lease_store.publish(list(anchored), ttl) if anchored else set()
        write_usage(replica, tally.usage)
        take_turns(tally.watched)
        elsewhere = read_usage(replica, tally.watched, tally.at)
    return Committed(Written(granted, dict(anchored[turn] for turn in fenced)), elsewhere)


def needs_claim(record: TurnRecord) -> bool:
    """Whether a turn that is about to be sent has to own the lease of its lane first."""
    return record.outcome is None and record.tenure is None


def late_ends(rows: Iterable[Mapping[str, Any]], now: datetime) -> list[datetime]:
    """When those turns ended that are written so late that the sums may have passed them."""
    ends = (row["settled_at"] for row in rows)
    return [end for end in ends if end is not None and end < now - late.LATE]


def lost_ends(rows: Iterable[Mapping[str, Any]], since: datetime) -> list[datetime]:
    """When those turns were closed as interrupted whose rows are replaced now. Only longer ones can have been."""
    old = [row["id"] for row in rows if row["received_at"] < since]
    if not old:
        return []
    closed = Turn.objects.filter(id__in=old, outcome=Outcome.INTERRUPTED, settled_at__isnull=False)
    return list(closed.values_list("settled_at", flat=True))  # type: ignore[arg-type]


def values(replica: uuid.UUID, record: TurnRecord) -> dict[str, Any]:
    """The row of a record, by field name."""
    request, usage = record.request, record.usage
    settled = record.phases.get(Phase.SETTLED)
    return {
        "id": request.id,
        "replica": replica,
        "via": request.via,
        "lease_id": None if record.tenure is None else record.tenure.lease,
        "lease_epoch": None if record.tenure is None else record.tenure.epoch,
        "anchored": False,
        "received_at": datetime.fromtimestamp(request.received_at, UTC),
        "settled_at": None if settled is None else datetime.fromtimestamp(request.received_at + settled / 1000, UTC),
        "key_id": request.key.id,
        "key_name": request.key.name,
        "account_id": record.account_id,
        "account_name": record.account_name,
        "session": "" if request.session is None else str(request.session)[:100],
        "route": request.route,
        "downstream": request.downstream,
        "upstream": record.upstream,
        "model": _text(request.body.model or "", 100),
        "asked_model": _text(request.asked_model, 100),
        "operation": "" if request.operation is None else request.operation.name,
        "response_id": _text(record.response_id, 200),
        "admitted_ms": _count(record.phases.get(Phase.ADMITTED)),
        "routed_ms": _count(record.phases.get(Phase.ROUTED)),
        "sent_ms": _count(record.phases.get(Phase.SENT)),
        "started_ms": _count(record.phases.get(Phase.STARTED)),
        "streaming_ms": _count(record.phases.get(Phase.STREAMING)),
        "settled_ms": _count(record.phases.get(Phase.SETTLED)),
        "outcome": record.outcome or "",
        "cause": record.cause,
        "code": _text(record.code, 100),
        "status": record.status,
        "attempts": record.attempts,
        "request_bytes": len(request.body.raw),
        "response_bytes": record.response_bytes,
        "events": min(record.events, MOST),
        "generated": request.body.generate,
        # What was not told is unknown, which is not the same as none.
        "input_tokens": None if usage is None else _count(usage.input),
        "cached_tokens": None if usage is None else _count(usage.cached),
        "output_tokens": None if usage is None else _count(usage.output),
        "reasoning_tokens": None if usage is None else _count(usage.reasoning),
        "cost_micros": record.cost,
    }


def _text(value: str, length: int) -> str:
    """A text from outside as every database takes it: PostgreSQL stores no NUL, and knows how long a text may be."""
    return value.replace("\0", "")[:length]


def _count(value: int | None) -> int | None:
    return None if value is None else min(value, MOST)


def find_response(client: int, response_id: str) -> int | None:
    """The account that made a response for the client over HTTP, where it may be stored; None when there is none."""
    made = Turn.objects.filter(key_id=client, response_id=response_id, upstream="http", outcome=Outcome.COMPLETED)
    return made.order_by("-received_at").values_list("account_id", flat=True).first()


def find_maker(client: int, response_id: str) -> int | None:
    """The account that made a response for the client, whatever became of it; None when there is none."""
    made = Turn.objects.filter(key_id=client, response_id=response_id).exclude(account_id=None)
    return made.order_by("-received_at").values_list("account_id", flat=True).first()


def prune(older: datetime) -> int:
    """Delete turns received before `older`, a piece at a time so that nobody waits long; the count."""
    deleted = 0
    while True:
        ids = list(
            Turn.objects.filter(received_at__lt=older).order_by("received_at").values_list("id", flat=True)[:1000]
        )
        if not ids:
            return deleted
        deleted += Turn.objects.filter(id__in=ids).delete()[0]


def close_interrupted(ttl: timedelta) -> int:
    """Close the open turns of every replica that is not alive, known or not; the count.

    It looks at the whole ledger, so it is for the start of a process; `close_dead` is for every second.
    """
    closed = close_dead(ttl)
    alive = Replica.objects.filter(stopped_at=None).values("id")
    return closed + interrupt(Turn.objects.filter(~Q(replica__in=alive)))


def close_dead(ttl: timedelta) -> int:
    """End the replicas that have died, their leases and their open turns; how many turns there were."""
    found = dead(ttl)
    return bury(found) if found else 0
