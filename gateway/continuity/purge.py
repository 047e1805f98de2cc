"""What nobody needs any more: soft sessions past their time, turn states of turns long over, hard sessions on accounts
that nobody can use, and leases of dead replicas.

A hard session is marked first and deleted by a later purge, as long again afterwards, unless it was used meanwhile.
Every statement repeats its conditions, so a row that changed since it was looked at is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from accounts.models import Account
from accounts.states import State
from gateway.conf import Tunables
from gateway.continuity.rules import SessionKind, Strength
from gateway.models import Lease, Replica, Session

# A preview shows no more rows of a group than this, and what was previewed is what is purged.
MOST_PREVIEWED = 500


LEASE = "lease"


class Group(StrEnum):
    """What a purge does, and to which sessions or leases."""

    SOFT = "soft ones expired"
    TURN_STATES = "turn states of turns long over"
    MARKED = "newly marked as abandoned"
    ABANDONED = "abandoned ones deleted"
    LEASES = "leases of dead replicas"


@dataclass(frozen=True, slots=True)
class Ages:
    """How long a session must have been unused, a soft one and any other, and a replica silent to be dead."""

    soft: timedelta
    other: timedelta
    dead: timedelta


def ages(tunables: Tunables) -> Ages:
    """As the settings say."""
    return Ages(
        soft=timedelta(seconds=tunables.soft_session_ttl),
        other=timedelta(seconds=tunables.stale_owner_age),
        dead=timedelta(seconds=tunables.lease_ttl),
    )


Rows = QuerySet[Session] | QuerySet[Lease]
Counts = Mapping[Group, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Purged:
    """How many rows of each kind went, or would go, in each group."""

    counts: Counts

    def __str__(self) -> str:
        return "; ".join(_told(group, self.counts.get(group, {})) for group in Group)

    def total(self, group: Group) -> int:
        """How many there were in a group, of all kinds."""
        return sum(self.counts.get(group, {}).values())


@dataclass(frozen=True, slots=True)
class Preview:
    """What exactly a purge at the moment `at` would touch: the ids of the rows by group.

    Of a group with more rows than are shown, the longest unused are in it.
    """

    at: datetime
    rows: Mapping[Group, Sequence[int]]


def purge(now: datetime, ages: Ages, *, dry_run: bool = False) -> Purged:
    """Delete and mark what is stale; with `dry_run` only count it."""
    found = stale(now, ages)
    if dry_run:
        return Purged({group: _by_kind(rows) for group, rows in found.items()})
    return Purged({group: _take(group, rows, now) for group, rows in found.items()})


def preview(now: datetime, ages: Ages) -> Preview:
    """What a purge would touch now; give it to `purge_previewed` to have exactly that done."""
    found = stale(now, ages)
    return Preview(
        now,
        {
            group: list(rows.order_by(_age(group)).values_list("pk", flat=True)[:MOST_PREVIEWED])
            for group, rows in found.items()
        },
    )


def purge_previewed(shown: Preview, ages: Ages) -> Purged:
    """Do what was previewed and nothing else; rows that have changed since are left alone."""
    found = stale(shown.at, ages)
    return Purged(
        {group: _take(group, rows.filter(pk__in=shown.rows.get(group, ())), shown.at) for group, rows in found.items()}
    )


def stale(now: datetime, ages: Ages) -> dict[Group, Rows]:
    """What a purge at `now` would touch, in the order in which it is done: what is marked is not deleted as well.

    Whether a replica is dead is asked by the database's clock, at the moment of the statement.
    """
    alive = Replica.objects.filter(id=OuterRef("owner"), stopped_at=None, heartbeat_at__gt=Now() - ages.dead)
    unused = Session.objects.filter(used_at__lt=now - ages.other)
    turn_states = Q(kind=SessionKind.TURN_STATE)
    homeless = unused.filter(~turn_states & ~Exists(_usable_accounts(now)), strength=Strength.HARD)
    return {
        Group.ABANDONED: homeless.filter(abandoned_at__lt=now - ages.other),
        Group.MARKED: homeless.filter(abandoned_at=None),
        Group.TURN_STATES: unused.filter(turn_states),
        Group.SOFT: Session.objects.filter(strength=Strength.SOFT, used_at__lt=now - ages.soft),
        # One that was released is soon claimed again, so it has its time; its epoch goes on counting meanwhile.
        Group.LEASES: Lease.objects.filter(~Exists(alive), Q(owner__isnull=False) | Q(changed_at__lt=now - ages.other)),
    }


def _take(group: Group, rows: Rows, now: datetime) -> dict[str, int]:
    """Mark or delete, a kind at a time."""
    done: dict[str, int] = {}
    mark = {"abandoned_at": now}
    for kind, of_kind in _kinds(rows):
        count = of_kind.update(**mark) if group is Group.MARKED else of_kind.delete()[0]
        if count:
            done[kind] = count
    return done


def _by_kind(rows: Rows) -> dict[str, int]:
    return {kind: count for kind, of_kind in _kinds(rows) if (count := of_kind.count())}


def _kinds(rows: Rows) -> Iterator[tuple[str, Rows]]:
    if rows.model is Lease:
        yield LEASE, rows
    else:
        for kind in SessionKind:
            yield kind, rows.filter(Q(kind=kind))


def _age(group: Group) -> str:
    return "changed_at" if group is Group.LEASES else "used_at"


def _told(group: Group, kinds: Mapping[str, int]) -> str:
    each = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return f"{sum(kinds.values())} {group}" + (f" ({each})" if each else "")


def _usable_accounts(now: datetime) -> QuerySet[Account]:
    """The session's account, if it can be used now or will be by itself: a limit that ends is no reason to let go."""
    usable = Q(state=State.ACTIVE) | Q(state=State.LIMITED, state_until__isnull=False)
    return Account.objects.filter(usable, id=OuterRef("account_id"))
