"""The ledger in the database."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from django.db.models import Q

from gateway.models import Replica, Turn
from gateway.protocol.events import Usage
from gateway.turns.record import TurnRecord
from gateway.turns.turn import Outcome, Phase

NO_USAGE = Usage()
UPDATED = [field.name for field in Turn._meta.fields if field.name != "id"]


def write(replica: uuid.UUID, records: Sequence[TurnRecord]) -> None:
    """Insert or replace the rows of `records` in one transaction; raises Django's database errors."""
    rows = [row(replica, record) for record in records]
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
    """Close the open turns of replicas that stopped or whose heartbeat is older than `dead_after`; the count."""
    alive = Replica.objects.filter(stopped_at=None, heartbeat_at__gt=now - dead_after).values("id")
    return Turn.objects.filter(~Q(replica__in=alive), outcome="").update(
        outcome=Outcome.INTERRUPTED, cause="process_died"
    )
