"""Sessions that nobody needs any more: soft ones past their time, hard ones on accounts that nobody can use.

A hard session is marked first and deleted by a later purge, as long again afterwards, unless it was used meanwhile.
Every statement repeats its conditions, so a row that changed since it was looked at is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Exists, OuterRef, Q, QuerySet

from accounts.models import Account
from accounts.states import State
from gateway.continuity.rules import Strength
from gateway.models import Session


@dataclass(frozen=True, slots=True)
class Purged:
    """How many sessions were deleted because they were soft and old, marked as abandoned, deleted as abandoned."""

    soft: int
    marked: int
    abandoned: int

    def __str__(self) -> str:
        return f"{self.soft} soft expired, {self.marked} newly marked as abandoned, {self.abandoned} abandoned deleted"


@dataclass(frozen=True, slots=True)
class Stale:
    """The three kinds of stale session at one moment, as queries."""

    soft: QuerySet[Session]
    to_mark: QuerySet[Session]
    abandoned: QuerySet[Session]


def stale(now: datetime, soft_ttl: timedelta, older_than: timedelta) -> Stale:
    """What a purge at `now` would touch."""
    unused = Session.objects.filter(used_at__lt=now - older_than)
    homeless = unused.filter(~Exists(_usable_accounts(now)), strength=Strength.HARD)
    return Stale(
        soft=Session.objects.filter(strength=Strength.SOFT, used_at__lt=now - soft_ttl),
        to_mark=homeless.filter(abandoned_at=None),
        abandoned=homeless.filter(abandoned_at__lt=now - older_than),
    )


def purge(now: datetime, soft_ttl: timedelta, older_than: timedelta, *, dry_run: bool = False) -> Purged:
    """Delete and mark what is stale; with `dry_run` only count it."""
    found = stale(now, soft_ttl, older_than)
    if dry_run:
        return Purged(found.soft.count(), found.to_mark.count(), found.abandoned.count())
    abandoned, _ = found.abandoned.delete()
    marked = found.to_mark.update(abandoned_at=now)
    soft, _ = found.soft.delete()
    return Purged(soft, marked, abandoned)


def _usable_accounts(now: datetime) -> QuerySet[Account]:
    """The session's account, if it can be used now or will be by itself: a limit that ends is no reason to let go."""
    usable = Q(state=State.ACTIVE) | Q(state=State.LIMITED, state_until__isnull=False)
    return Account.objects.filter(usable, id=OuterRef("account_id"))
