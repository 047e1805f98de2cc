"""What keeps sessions and ledger in order, each as a function of the moment that says in a sentence what it did.

The running gateway and Celery tasks call them.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from gateway.conf import Tunables
from gateway.continuity.purge import ages, purge
from gateway.metering.store import prune_usage
from gateway.turns.ledger_store import prune
from gateway.watch.rollup import roll_up
from gateway.watch.store import forget_old


def purge_stale_owners(now: datetime, tunables: Tunables) -> str:
    return f"Purged: {purge(now, ages(tunables))}."


def prune_turns(now: datetime, tunables: Tunables) -> str:
    """Delete turns that were received longer ago than `turn_retention`, and usage of windows that are long over."""
    turns = prune(now - timedelta(seconds=tunables.turn_retention))
    return f"Pruned {turns} turns and {prune_usage(now)} rows of usage."


def count_turns(now: datetime) -> str:
    return f"Counted {roll_up(now)} spans of turns."


def forget(now: datetime) -> str:
    return f"Forgot {forget_old(now)} snapshots and orders."
