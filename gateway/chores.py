"""The pool's upkeep without a broker: plain functions, called by one replica at a time.

With `CELERY_BROKER_URL` set a Celery beat calls the same functions, and no replica does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog

from accounts import upkeep
from accounts.tokens import Refresher, Run
from accounts.web import Web
from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.continuity.purge import purge
from gateway.turns.ledger_store import prune

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


def pool_chores(run: Run, web: Web, refresher: Refresher, keys: Sequence[str], tunables: Tunables) -> list[Chore]:
    """Everything that keeps accounts, sessions and ledger in order."""

    def now() -> float:
        return datetime.now(UTC).timestamp()

    async def recover() -> str:
        return await run(upkeep.recover_limited, now())

    async def refresh() -> str:
        return await upkeep.refresh_tokens(refresher, run, keys, now())

    async def poll() -> str:
        return await upkeep.poll_usage(web.fetch, refresher, run, keys, now())

    async def purge_sessions() -> str:
        soft, stale = timedelta(seconds=tunables.soft_session_ttl), timedelta(seconds=tunables.stale_owner_age)
        return f"Purged: {await run(purge, datetime.now(UTC), soft, stale)}."

    async def prune_turns() -> str:
        older = datetime.now(UTC) - timedelta(seconds=tunables.turn_retention)
        return f"Pruned {await run(prune, older)} turns."

    return [
        Chore("recover_limited", 10.0, recover),
        Chore("refresh_tokens", MINUTE, refresh),
        Chore("poll_usage", 5 * MINUTE, poll),
        Chore("purge_stale_owners", HOUR, purge_sessions),
        Chore("prune_turns", HOUR, prune_turns),
    ]
