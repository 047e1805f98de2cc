"""Rows of sessions: synchronous functions for the database threads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from django.db.models import Q

from gateway.continuity.rules import SessionKey, SessionKind, Strength
from gateway.continuity.sessions import MAX_SESSIONS, Session
from gateway.models import Session as Row

UNIQUE = ["client", "kind", "digest"]
UPDATED = ["account_id", "strength", "used_at", "abandoned_at"]


def write_sessions(sessions: Sequence[Session]) -> None:
    """Insert or replace these sessions; use marks an abandoned one as alive again."""
    rows = [
        Row(
            client=session.key.client,
            kind=session.key.kind,
            digest=session.key.digest,
            account_id=session.account_id,
            strength=session.strength,
            used_at=datetime.fromtimestamp(session.used_at, UTC),
        )
        for session in sessions
    ]
    Row.objects.bulk_create(rows, update_conflicts=True, unique_fields=UNIQUE, update_fields=UPDATED)


def load_sessions(since: float, soft_since: float) -> Sequence[Session]:
    """Sessions used after `since` (unix seconds), soft ones only after `soft_since`, the last used at the end."""
    moment, soft_moment = (datetime.fromtimestamp(max(0.0, time), UTC) for time in (since, soft_since))
    alive = Q(strength=Strength.HARD) | Q(used_at__gt=soft_moment)
    rows = Row.objects.filter(alive, used_at__gt=moment).order_by("-used_at")[:MAX_SESSIONS]
    return [
        Session(
            SessionKey(row.client, SessionKind(row.kind), row.digest),
            row.account_id,
            Strength(row.strength),
            row.used_at.timestamp(),
        )
        for row in reversed(rows)
    ]
