"""The ledger in the database."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.db.models import Q, QuerySet

from gateway.continuity.store import write_sessions
from gateway.models import Replica, Turn
from gateway.protocol.events import Usage
from gateway.rows import dead_replicas
from gateway.turns.record import TurnRecord
from gateway.turns.turn import Outcome, Phase
from gateway.upsert import Upsert

NO_USAGE = Usage()
# What a column of whole numbers holds in every database; a larger count is stored as this.
MOST = 2**31 - 1
TURNS = Upsert(Turn, unique=["id"])


def write(replica: uuid.UUID, records: Sequence[TurnRecord]) -> None:
    """Insert or replace the rows of `records`, and of their sessions, in one transaction.

    Raises Django's database errors, and then nothing was written.
    """
    sessions = {record.session.key: record.session for record in records if record.session is not None}
    with transaction.atomic():
        if sessions:
            # In one order everywhere, so that two replicas cannot wait for each other's rows.
            write_sessions(replica, sorted(sessions.values(), key=lambda session: str(session.key)))
        TURNS.write([values(replica, record) for record in records])


def values(replica: uuid.UUID, record: TurnRecord) -> dict[str, object]:
    """The row of a record, by field name."""
    request, usage = record.request, record.usage or NO_USAGE
    return {
        "id": request.id,
        "replica": replica,
        "received_at": datetime.fromtimestamp(request.received_at, UTC),
        "key_id": request.key.id,
        "key_name": request.key.name,
        "account_id": record.account_id,
        "account_name": record.account_name,
        "session": "" if request.session is None else str(request.session)[:100],
        "route": request.route,
        "downstream": request.downstream,
        "upstream": record.upstream,
        "model": _text(request.body.model or "", 100),
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
        "input_tokens": _count(usage.input),
        "cached_tokens": _count(usage.cached),
        "output_tokens": _count(usage.output),
        "reasoning_tokens": _count(usage.reasoning),
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


def close_interrupted(now: datetime, dead_after: timedelta) -> int:
    """Close the open turns of every replica that is not alive, known or not; the count.

    It looks at the whole ledger, so it is for the start of a process; `close_dead` is for every few seconds.
    """
    closed = close_dead(now, dead_after)
    alive = Replica.objects.filter(stopped_at=None).values("id")
    return closed + _interrupt(Turn.objects.filter(~Q(replica__in=alive)))


def close_dead(now: datetime, dead_after: timedelta) -> int:
    """End the replicas that have died and close their open turns; how many turns there were."""
    dead = dead_replicas(now, dead_after)
    if not dead:
        return 0
    with transaction.atomic():
        closed = _interrupt(Turn.objects.filter(replica__in=dead))
        Replica.objects.filter(id__in=dead).update(stopped_at=now)
    return closed


def _interrupt(turns: QuerySet[Turn]) -> int:
    return turns.filter(outcome="").update(outcome=Outcome.INTERRUPTED, cause="process_died")
