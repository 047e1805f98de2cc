"""The upkeep of sessions and ledger as Celery tasks. Each returns what the function says."""

from __future__ import annotations

from datetime import UTC, datetime

from celery import shared_task
from django.conf import settings

from gateway import drains, housekeeping

# Seconds after which a worker ends a task; what was not deleted by then is deleted the next time.
TIME_LIMIT = 300


@shared_task(name="gateway.purge_stale_owners", time_limit=TIME_LIMIT)  # type: ignore[untyped-decorator]
def purge_stale_owners() -> str:
    return housekeeping.purge_stale_owners(datetime.now(UTC), settings.GATEWAY)


@shared_task(name="gateway.finish_drains", time_limit=TIME_LIMIT)  # type: ignore[untyped-decorator]
def finish_drains() -> str:
    return drains.finish_drains(datetime.now(UTC))


@shared_task(name="gateway.prune_turns", time_limit=TIME_LIMIT)  # type: ignore[untyped-decorator]
def prune_turns() -> str:
    return housekeeping.prune_turns(datetime.now(UTC), settings.GATEWAY)


@shared_task(name="gateway.count_turns", time_limit=TIME_LIMIT)  # type: ignore[untyped-decorator]
def count_turns() -> str:
    return housekeeping.count_turns(datetime.now(UTC))


@shared_task(name="gateway.forget_old", time_limit=TIME_LIMIT)  # type: ignore[untyped-decorator]
def forget_old() -> str:
    return housekeeping.forget(datetime.now(UTC))
