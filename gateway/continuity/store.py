"""Rows of sessions: synchronous functions for the database threads."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from django.db.models import Exists, OuterRef, Q, QuerySet

from accounts.models import Account
from accounts.states import State
from gateway.continuity.rules import SessionKey, SessionKind, Strength
from gateway.continuity.sessions import MAX_SESSIONS, Departure, Session
from gateway.models import Session as Row
from gateway.upsert import Upsert

SESSIONS = Upsert(Row, unique=["client", "kind", "digest"], made_once=["created_at"], newest="used_at")


def write_sessions(replica: uuid.UUID, sessions: Sequence[Session]) -> None:
    """Insert or replace these sessions; use marks an abandoned one as alive again.

    One that was used later than this stays as it is: writes may be late, and a departure must not be undone by one.
    """
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
                "left_behind": sorted(session.left_behind),
            }
            for session in sessions
        ]
    )


def load_sessions(reader: uuid.UUID, since: float, soft_since: float) -> Sequence[Session]:
    """Sessions that others than `reader` wrote after `since` (unix seconds), the last used at the end.

    Soft ones count only after `soft_since`.
    """
    moment, soft_moment = (datetime.fromtimestamp(max(0.0, time), UTC) for time in (since, soft_since))
    rows = Row.objects.filter(used_at__gt=moment).exclude(replica=reader)
    if moment < soft_moment:
        rows = rows.filter(~Q(strength=Strength.SOFT) | Q(used_at__gt=soft_moment))
    return [_session(row) for row in reversed(rows.order_by("-used_at")[:MAX_SESSIONS])]


def find_session(key: SessionKey) -> Session | None:
    """What is stored of a conversation, however long ago it was used."""
    row = _rows(key).first()
    return None if row is None else _session(row)


def depart(replica: uuid.UUID, departure: Departure) -> bool:
    """Make `before` into `after` in one statement, whose conditions are the departure's; whether they held."""
    before, after = departure.before, departure.after
    not_before = datetime.fromtimestamp(departure.not_before, UTC)
    usable = Q(state=State.ACTIVE) | Q(state=State.LIMITED, state_until__lte=not_before)
    still_there = _rows(before.key).filter(account_id=before.account_id, strength=before.strength)
    out_of_use = ~Exists(Account.objects.filter(usable, id=OuterRef("account_id")))
    changed = still_there.filter(out_of_use).update(
        account_id=after.account_id,
        strength=after.strength,
        used_at=datetime.fromtimestamp(after.used_at, UTC),
        replica=replica,
        abandoned_at=None,
        left_behind=sorted(after.left_behind),
    )
    return changed == 1


def _rows(key: SessionKey) -> QuerySet[Row]:
    return Row.objects.filter(client=key.client, kind=key.kind, digest=key.digest)


def _session(row: Row) -> Session:
    return Session(
        SessionKey(row.client, SessionKind(row.kind), row.digest),
        row.account_id,
        Strength(row.strength),
        row.used_at.timestamp(),
        frozenset(row.left_behind),
    )
