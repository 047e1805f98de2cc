"""Rows of sessions: synchronous functions for the database threads."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from django.db.models import Q

from gateway.continuity.rules import SessionKey, SessionKind, Strength
from gateway.continuity.sessions import MAX_SESSIONS, Session
from gateway.models import Session as Row
from gateway.upsert import Upsert

SESSIONS = Upsert(Row, unique=["client", "kind", "digest"], made_once=["created_at"])


def write_sessions(replica: uuid.UUID, sessions: Sequence[Session]) -> None:
    """Insert or replace these sessions; use marks an abandoned one as alive again."""
    now = datetime.now(UTC)
    SESSIONS.write(
        [
            {
                "client": session.key.client,
                "kind": session.key.kind,
                "digest": session.key.digest,
                "account_id": session.account_id,
                "strength": session.strength,
                "created_at": now,
                "used_at": datetime.fromtimestamp(session.used_at, UTC),
                "replica": replica,
                "abandoned_at": None,
            }
            for session in sessions
        ]
    )


def load_sessions(reader: uuid.UUID, since: float, soft_since: float) -> Sequence[Session]:
    """Sessions that others than `reader` wrote after `since` (unix seconds), the last used at the end.

    Soft ones count only after `soft_since`.
    """
    moment, soft_moment = (datetime.fromtimestamp(max(0.0, time), UTC) for time in (since, soft_since))
    alive = Q(strength=Strength.HARD) | Q(used_at__gt=soft_moment)
    rows = Row.objects.filter(alive, used_at__gt=moment).exclude(replica=reader).order_by("-used_at")[:MAX_SESSIONS]
    return [
        Session(
            SessionKey(row.client, SessionKind(row.kind), row.digest),
            row.account_id,
            Strength(row.strength),
            row.used_at.timestamp(),
        )
        for row in reversed(rows)
    ]
