"""The upkeep of sessions and ledger as Celery tasks. Each returns what the function says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from celery import shared_task
from django.conf import settings

from gateway.continuity.purge import purge
from gateway.turns.ledger_store import prune

# Seconds after which a worker ends a task; what was not deleted by then is deleted the next time.
TIME_LIMIT = 300


@shared_task(name="gateway.purge_stale_owners", time_limit=TIME_LIMIT)  # type: ignore[untyped-decorator]
def purge_stale_owners() -> str:
    tunables = settings.GATEWAY
    soft, stale = timedelta(seconds=tunables.soft_session_ttl), timedelta(seconds=tunables.stale_owner_age)
    return f"Purged: {purge(datetime.now(UTC), soft, stale)}."


@shared_task(name="gateway.prune_turns", time_limit=TIME_LIMIT)  # type: ignore[untyped-decorator]
def prune_turns() -> str:
    older = datetime.now(UTC) - timedelta(seconds=settings.GATEWAY.turn_retention)
    return f"Pruned {prune(older)} turns."
