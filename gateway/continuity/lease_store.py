"""Rows of leases, each change one conditional statement. For the database threads; time is the database's clock."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from django.db import connection
from django.db.models import BooleanField
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from gateway.continuity.leases import LeaseKey, Tenure
from gateway.models import Lease, Turn

# Conditions of one statement; SQLite takes a thousand parts of an expression, PostgreSQL far more.
MOST_AT_ONCE = 200

# Of a lease: its owner is alive.
OWNER_LIVES = """EXISTS (
    SELECT 1 FROM gateway_replica
    WHERE gateway_replica.id = gateway_lease.owner AND stopped_at IS NULL AND heartbeat_at > {oldest}
)"""

# Of a turn: its replica lives and holds the lease that it ran under, with the same epoch.
STILL_HELD = f"""EXISTS (
    SELECT 1 FROM gateway_lease
    WHERE gateway_lease.id = gateway_turn.lease_id AND gateway_lease.epoch = gateway_turn.lease_epoch
    AND gateway_lease.owner = gateway_turn.replica AND {OWNER_LIVES}
)"""  # noqa: S608  # our own text, as below

CLAIM = f"""
INSERT INTO gateway_lease (client, session, owner, epoch, changed_at) VALUES {{rows}}
ON CONFLICT (client, session) DO UPDATE
SET owner = EXCLUDED.owner, epoch = gateway_lease.epoch + 1, changed_at = EXCLUDED.changed_at
WHERE gateway_lease.owner IS NULL OR gateway_lease.owner = EXCLUDED.owner OR NOT {OWNER_LIVES}
RETURNING client, session, id, epoch
"""  # noqa: S608

# Every turn on a lane needs it, and to write it down takes Django far longer than the database to do it.
PUBLISH = f"UPDATE gateway_turn SET anchored = TRUE WHERE id IN ({{ids}}) AND {STILL_HELD} RETURNING id"  # noqa: S608


def claim(replica: uuid.UUID, keys: Iterable[LeaseKey], ttl: timedelta) -> Mapping[LeaseKey, Tenure]:
    """Claim these leases; those that another living replica holds are not in what is returned.

    They are taken in one order everywhere, so that two replicas cannot wait for each other's rows.
    """
    granted: dict[LeaseKey, Tenure] = {}
    ordered = sorted(set(keys))
    for start in range(0, len(ordered), MOST_AT_ONCE):
        granted.update(_claim(replica, ordered[start : start + MOST_AT_ONCE], ttl))
    return granted


def _claim(replica: uuid.UUID, keys: Sequence[LeaseKey], ttl: timedelta) -> Mapping[LeaseKey, Tenure]:
    owner = Lease._meta.get_field("owner").get_db_prep_save(replica, connection)
    now, oldest = _clock()
    rows = ", ".join([f"(%s, %s, %s, 1, {now})"] * len(keys))
    values = [value for key in keys for value in (key.client, key.session, owner)]
    with connection.cursor() as cursor:
        cursor.execute(CLAIM.format(rows=rows, oldest=oldest), [*values, ttl.total_seconds()])
        return {LeaseKey(client, session): Tenure(lease, epoch) for client, session, lease, epoch in cursor.fetchall()}


def _clock() -> tuple[str, str]:
    """The database's time, and the time so many seconds ago, as Django stores times."""
    if connection.vendor == "postgresql":
        return "statement_timestamp()", "statement_timestamp() - make_interval(secs => %s)"
    text = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now'"
    return f"{text})", f"{text}, '-' || %s || ' seconds')"


def release(replica: uuid.UUID, tenures: Iterable[Tenure]) -> None:
    """Set these leases free, unless somebody has claimed them since."""
    for tenure in sorted(tenures):
        Lease.objects.filter(id=tenure.lease, owner=replica, epoch=tenure.epoch).update(owner=None, changed_at=Now())


def publish(turns: Sequence[uuid.UUID], ttl: timedelta) -> set[uuid.UUID]:
    """Let others find the responses of these turns; the turns whose lease has another owner or epoch by now.

    A replica that has been declared dead owns no lease, and so publishes nothing.
    """
    held: set[uuid.UUID] = set()
    for start in range(0, len(turns), MOST_AT_ONCE):
        held |= _publish(turns[start : start + MOST_AT_ONCE], ttl)
    return set(turns) - held


def _publish(turns: Sequence[uuid.UUID], ttl: timedelta) -> set[uuid.UUID]:
    stored = {Turn._meta.pk.get_db_prep_value(turn, connection): turn for turn in turns}
    statement = PUBLISH.format(ids=", ".join(["%s"] * len(stored)), oldest=_clock()[1])
    with connection.cursor() as cursor:
        cursor.execute(statement, [*stored, ttl.total_seconds()])
        return {stored[turn] for (turn,) in cursor.fetchall()}


def owner_of_session(key: LeaseKey, ttl: timedelta) -> uuid.UUID | None:
    """The living replica that holds the lease."""
    held = Lease.objects.filter(_condition(OWNER_LIVES, ttl), client=key.client, session=key.session)
    return held.values_list("owner", flat=True).first()


def owner_of_response(client: int, response_id: str, ttl: timedelta) -> uuid.UUID | None:
    """The living replica that published the response, if it still holds the lease that it did so under."""
    turns = Turn.objects.filter(_condition(STILL_HELD, ttl), key_id=client, response_id=response_id, anchored=True)
    return turns.values_list("replica", flat=True).first()


def _condition(text: str, ttl: timedelta) -> RawSQL:
    return RawSQL(text.format(oldest=_clock()[1]), [ttl.total_seconds()], BooleanField())  # noqa: S611  # our own text
