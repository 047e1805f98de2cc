"""The pool's upkeep without a broker: plain functions, called by one replica at a time.

With `CELERY_BROKER_URL` set a Celery beat calls the same functions, and no replica does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from accounts import upkeep
from accounts.asking import Asker
from accounts.probes import probe_circuits
from gateway import housekeeping
from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.drains import finish_drains

log = structlog.get_logger("gateway.chores")

MINUTE = 60.0
HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Chore:
    """Something to be done every `interval` seconds; `work` returns a sentence about what it did."""

    name: str
    interval: float
    work: Callable[[], Awaitable[str]]


class Chores:
    """Does what is due, one thing after the other. A chore that fails is reported and tried again in its time."""

    def __init__(self, chores: Sequence[Chore], clock: Clock) -> None:
        self._chores = chores
        self._clock = clock
        self._done_at: dict[str, float] = {}

    async def do_due(self) -> None:
        """Do every chore whose interval has passed since it was last begun here."""
        for chore in self._chores:
            now = self._clock.monotonic()
            if now - self._done_at.get(chore.name, -HOUR * 24) < chore.interval:
                continue
            self._done_at[chore.name] = now
            try:
                log.debug("chore_done", chore=chore.name, said=await chore.work())
            except Exception:  # any of them may fail in ways of its own, and none may keep the others from being done
                log.exception("chore_failed", chore=chore.name)


def pool_chores(asker: Asker, tunables: Tunables, now: Callable[[], float]) -> list[Chore]:
    """Everything that keeps accounts, sessions and ledger in order; `now` is unix time."""
    run = asker.run

    def moment() -> datetime:
        return datetime.fromtimestamp(now(), UTC)

    return [
        Chore("count_turns", 15.0, lambda: run(housekeeping.count_turns, moment())),
        Chore("forget_old", HOUR, lambda: run(housekeeping.forget, moment())),
        Chore("recover_limited", 10.0, lambda: run(upkeep.recover_limited, now())),
        Chore("refresh_tokens", MINUTE, lambda: upkeep.refresh_tokens(asker, now())),
        Chore("finish_drains", 10.0, lambda: run(finish_drains, moment())),
        Chore("probe_circuits", 10.0, lambda: probe_circuits(asker, now)),
        Chore("poll_usage", 5 * MINUTE, lambda: upkeep.poll_usage(asker, now())),
        Chore("poll_models", HOUR, lambda: upkeep.poll_models(asker)),
        Chore("find_models", 5 * MINUTE, lambda: upkeep.poll_models(asker, unknown_only=True)),
        Chore("purge_stale_owners", HOUR, lambda: run(housekeeping.purge_stale_owners, moment(), tunables)),
        Chore("prune_turns", HOUR, lambda: run(housekeeping.prune_turns, moment(), tunables)),
    ]
