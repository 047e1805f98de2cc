"""The columns of the list of sessions, and what they need to know besides the sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import NamedTuple
from uuid import UUID

from django.conf import settings
from django.contrib import admin
from django.utils.html import format_html

from accounts.models import Account
from dashboard.columns import DIGEST_SHOWN, NOTHING, Tone, ago, coloured
from dashboard.overview.pool import dead_after
from gateway.continuity.rules import Strength
from gateway.models import ApiKey, Replica, Session
from gateway.watch.store import snapshots

TONES = {Strength.HARD: Tone.BUSY, Strength.SOFT: Tone.GOOD, Strength.LEFT: Tone.OFF}

Columns = tuple[Callable[[Session], str], ...]


class Around:
    """What a page of sessions needs to know besides them, asked once for the page."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    @cached_property
    def accounts(self) -> Mapping[int, str]:
        return dict(Account.objects.values_list("id", "name"))

    @cached_property
    def keys(self) -> Mapping[int, str]:
        return dict(ApiKey.objects.values_list("id", "name"))

    @cached_property
    def replicas(self) -> Mapping[UUID, tuple[str, float]]:
        """The processes that live, in words, and for how many seconds their leases last unless they are renewed."""
        ttl: float = settings.GATEWAY.lease_ttl
        alive = Replica.objects.filter(stopped_at=None, heartbeat_at__gt=self.now - timedelta(seconds=ttl))
        return {each.id: (str(each), ttl - (self.now - each.heartbeat_at).total_seconds()) for each in alive}

    def owner(self, held: Held) -> tuple[str, float | None]:
        """The replica that owns a lease, and the seconds left of it; None for both where it does not count."""
        known = None if held.owner is None else self.replicas.get(held.owner)
        return known or (NOTHING, None)

    @cached_property
    def generations(self) -> Mapping[tuple[int, str], int]:
        """The newest lane of each conversation, by client and the lanes' name for it."""
        newest: dict[tuple[int, str], int] = {}
        for snapshot in snapshots(self.now, dead_after()).values():
            for lane in snapshot.lanes:
                place = (lane.client, lane.session)
                newest[place] = max(newest.get(place, 0), lane.generation)
        return newest


class Held(NamedTuple):
    """The lease of a conversation's lanes, as the list has read it."""

    lease: int
    owner: UUID | None
    epoch: int


def lease_of(session: Session) -> Held | None:
    """What `get_queryset` has found beside the session."""
    lease, owner, epoch = (session.__dict__.get(f"lease_{name}") for name in ("id", "owner", "epoch"))
    return None if lease is None or epoch is None else Held(lease, owner, epoch)


def columns(around: Around) -> Columns:
    """The columns of the list, first what is tied, then to what."""

    @admin.display(description="name")
    def name(session: Session) -> str:
        return format_html('{}<div class="below">{}</div>', session.digest[:DIGEST_SHOWN], session.kind)

    @admin.display(description="client")
    def client(session: Session) -> str:
        return around.keys.get(session.client, NOTHING)

    @admin.display(description="strength")
    def strength(session: Session) -> str:
        word = coloured(session.strength, TONES[Strength(session.strength)])
        return word if session.abandoned_at is None else coloured("abandoned", Tone.WARNING)

    @admin.display(description="account")
    def account(session: Session) -> str:
        return around.accounts.get(session.account_id, f"{session.account_id} (removed)")

    @admin.display(description="generation")
    def generation(session: Session) -> str:
        found = around.generations.get((session.client, f"{session.kind}:{session.digest}"))
        return NOTHING if found is None else str(found)

    @admin.display(description="last used", ordering="used_at")
    def last_used(session: Session) -> str:
        return ago(session.used_at, around.now)

    return (name, client, strength, account, *lease_columns(around), generation, last_used)


def lease_columns(around: Around) -> Columns:
    """Who owns the conversation's lanes."""

    @admin.display(description="owner")
    def owner(session: Session) -> str:
        held = lease_of(session)
        return NOTHING if held is None else around.owner(held)[0]

    @admin.display(description="epoch")
    def epoch(session: Session) -> str:
        held = lease_of(session)
        return NOTHING if held is None else str(held.epoch)

    @admin.display(description="lease")
    def left(session: Session) -> str:
        held = lease_of(session)
        if held is None:
            return NOTHING
        _, seconds = around.owner(held)
        if seconds is None:
            return coloured("free" if held.owner is None else "expired", Tone.OFF)
        return f"{seconds:.0f} s left"

    return (owner, epoch, left)
