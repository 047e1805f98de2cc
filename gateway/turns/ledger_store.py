"""The ledger in the database."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.db.models import Q

from gateway.continuity.store import write_sessions
from gateway.models import Replica, Turn
from gateway.protocol.events import Usage
from gateway.turns.record import TurnRecord
from gateway.turns.turn import Outcome, Phase

NO_USAGE = Usage()
UPDATED = [field.name for field in Turn._meta.fields if field.name != "id"]


def write(replica: uuid.UUID, records: Sequence[TurnRecord]) -> None:
    """Insert or replace the rows of `records`, and of their sessions, in one transaction.

    Raises Django's database errors, and then nothing was written.
    """
    rows = [row(replica, record) for record in records]
    sessions = {record.session.key: record.session for record in records if record.session is not None}
    with transaction.atomic():
        if sessions:
            write_sessions(list(sessions.values()))
        Turn.objects.bulk_create(rows, update_conflicts=True, unique_fields=["id"], update_fields=UPDATED)


def row(replica: uuid.UUID, record: TurnRecord) -> Turn:
    """The model instance of a record."""
    request, usage = record.request, record.usage or NO_USAGE
    return Turn(
        id=request.id,
        replica=replica,
        received_at=datetime.fromtimestamp(request.received_at, UTC),
        key_id=request.key.id,
        key_name=request.key.name,
        account_id=record.account_id,
        account_name=record.account_name,
        session="" if request.session is None else str(request.session)[:100],
        route=request.route,
        downstream=request.downstream,
        upstream=record.upstream,
        model=(request.body.model or "")[:100],
        response_id=record.response_id[:200],
        admitted_ms=record.phases.get(Phase.ADMITTED),
        routed_ms=record.phases.get(Phase.ROUTED),
        sent_ms=record.phases.get(Phase.SENT),
        started_ms=record.phases.get(Phase.STARTED),
        streaming_ms=record.phases.get(Phase.STREAMING),
        settled_ms=record.phases.get(Phase.SETTLED),
        outcome=record.outcome or "",
        cause=record.cause,
        code=record.code[:100],
        status=record.status,
        attempts=record.attempts,
        request_bytes=len(request.body.raw),
        response_bytes=record.response_bytes,
        events=record.events,
        generated=request.body.generate,
        input_tokens=usage.input,
        cached_tokens=usage.cached,
        output_tokens=usage.output,
        reasoning_tokens=usage.reasoning,
    )


def close_interrupted(now: datetime, dead_after: timedelta) -> int:
    """Close the open turns of every replica that is not alive, known or not; the count.

    It looks at the whole ledger, so it is for the start of a process; `close_dead` is for every few seconds.
    """
    closed = close_dead(now, dead_after)
    alive = Replica.objects.filter(stopped_at=None).values("id")
    return closed + _interrupt(Turn.objects.filter(~Q(replica__in=alive)))


def close_dead(now: datetime, dead_after: timedelta) -> int:
    """End the replicas that have died and close their open turns; how many turns there were."""
    dead = rows.dead_replicas(now, dead_after)
    if not dead:
        return 0
    with transaction.atomic():
        closed = _interrupt(Turn.objects.filter(replica__in=dead))
        Replica.objects.filter(id__in=dead).update(stopped_at=now)
    return closed


def _interrupt(turns: QuerySet[Turn]) -> int:
    return turns.filter(outcome="").update(outcome=Outcome.INTERRUPTED, cause="process_died")
