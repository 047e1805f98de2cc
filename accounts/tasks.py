"""The upkeep of the pool as Celery tasks, for installations that have workers. Each returns what the function says."""

from __future__ import annotations

import time

from celery import shared_task

from accounts import probes, upkeep
from accounts.errand import with_asker

# Seconds after which a worker ends a task. A refresh that was begun must not be cut off, so they are well beyond
# what the functions themselves allow.
SHORT = 60
LONG = 300


@shared_task(name="accounts.recover_limited", time_limit=SHORT)  # type: ignore[untyped-decorator]  # celery has no types
def recover_limited() -> str:
    return upkeep.recover_limited(time.time())


@shared_task(name="accounts.refresh_tokens", time_limit=LONG)  # type: ignore[untyped-decorator]
def refresh_tokens() -> str:
    return with_asker(lambda asker: upkeep.refresh_tokens(asker, time.time()))


@shared_task(name="accounts.poll_usage", time_limit=LONG)  # type: ignore[untyped-decorator]
def poll_usage() -> str:
    return with_asker(lambda asker: upkeep.poll_usage(asker, time.time()))


@shared_task(name="accounts.poll_models", time_limit=LONG)  # type: ignore[untyped-decorator]
def poll_models() -> str:
    return with_asker(upkeep.poll_models)


@shared_task(name="accounts.find_models", time_limit=LONG)  # type: ignore[untyped-decorator]
def find_models() -> str:
    return with_asker(lambda asker: upkeep.poll_models(asker, unknown_only=True))


@shared_task(name="accounts.probe_circuits", time_limit=LONG)  # type: ignore[untyped-decorator]
def probe_circuits() -> str:
    return with_asker(lambda asker: probes.probe_circuits(asker, time.time))
