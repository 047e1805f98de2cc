"""What a purge deletes, marks and leaves alone."""

import io
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection, transaction

from accounts.models import Account
from gateway.continuity.purge import Ages, Group, Purged, preview, purge, purge_previewed
from gateway.models import Lease, Replica, Session
from gateway.tasks import purge_stale_owners
from tests.support.postgres import require_postgres
from tests.support.processes import ROOT, environment

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
TTL, AGE = timedelta(minutes=30), timedelta(hours=6)
AGES = Ages(TTL, AGE, timedelta(seconds=30))
OLD = NOW - timedelta(hours=7)

pytestmark = pytest.mark.django_db


def account(name: str, **changes) -> Account:
    return Account.objects.create(name=name, kind="openai", base_url="https://api.openai.com/v1", **changes)


def session(owner: int, strength: str = "hard", used_at: datetime = OLD, **changes) -> Session:
    digest = f"{Session.objects.count():064}"
    fields = {"client": 1, "kind": "thread-id", "digest": digest, "replica": uuid.UUID(int=1), **changes}
    return Session.objects.create(account_id=owner, strength=strength, used_at=used_at, **fields)


def done(purged: Purged) -> dict[str, dict[str, int]]:
    return {group.name.lower(): dict(kinds) for group, kinds in purged.counts.items() if kinds}


def test_soft_sessions_past_their_time_are_deleted_and_younger_ones_stay():
    ada = account("ada")
    session(ada.id, "soft", NOW - TTL * 2)
    session(ada.id, "soft", NOW - TTL * 2, kind="session-id")
    young = session(ada.id, "soft", NOW - TTL / 2)
    assert done(purge(NOW, AGES)) == {"soft": {"thread-id": 1, "session-id": 1}}
    assert list(Session.objects.all()) == [young]


@pytest.mark.parametrize("state", ["paused", "needs_login", "disabled", "limited"])
def test_a_hard_session_of_an_unusable_account_is_marked_and_deleted_as_long_again_later(state):
    kept = session(account("ada").id)
    session(account("bo", state=state).id)
    assert done(purge(NOW, AGES)) == {"marked": {"thread-id": 1}}
    assert done(purge(NOW + AGE / 2, AGES)) == {}
    assert done(purge(NOW + AGE + TTL, AGES)) == {"abandoned": {"thread-id": 1}}
    assert list(Session.objects.all()) == [kept]


def test_a_hard_session_of_a_deleted_account_is_let_go():
    session(4711, kind="file")
    assert done(purge(NOW, AGES)) == {"marked": {"file": 1}}


def test_a_limit_that_ends_is_no_reason_to_let_go():
    session(account("bo", state="limited", state_until=NOW + timedelta(days=5)).id)
    assert done(purge(NOW, AGES)) == {}


@pytest.mark.parametrize("strength", ["hard", "left"])
def test_turn_state_is_over_when_nobody_has_shown_it_for_so_long_whatever_its_account(strength):
    ada = account("ada")
    session(ada.id, strength, kind="turn-state")
    session(ada.id, strength, NOW - AGE / 2, kind="turn-state")
    assert done(purge(NOW, AGES)) == {"turn_states": {"turn-state": 1}}
    assert Session.objects.count() == 1


def test_a_session_that_is_used_again_after_it_was_marked_stays():
    row = session(account("bo", state="paused").id)
    purge(NOW, AGES)
    Session.objects.filter(pk=row.pk).update(used_at=NOW + AGE, abandoned_at=None)
    assert done(purge(NOW + AGE + TTL, AGES)) == {}


def lease(owner: Replica | None, session: str, age: timedelta = timedelta(0)) -> Lease:
    owned_by = None if owner is None else owner.id
    return Lease.objects.create(client=1, session=session, owner=owned_by, epoch=1, changed_at=NOW - age)


def replica(age: timedelta, **changes) -> Replica:
    at = datetime.now(UTC) - age
    return Replica.objects.create(host="h", process=1, started_at=at, heartbeat_at=at, **changes)


def test_leases_of_dead_replicas_go_and_those_of_living_ones_stay():
    second = timedelta(seconds=1)
    held = lease(replica(second), "held", AGE * 2)
    released = lease(None, "released")
    lease(None, "released long ago", AGE * 2)
    lease(replica(timedelta(minutes=1)), "silent")
    lease(replica(second, stopped_at=datetime.now(UTC)), "stopped")
    Lease.objects.create(client=1, session="unknown", owner=uuid.uuid4(), epoch=1, changed_at=NOW)
    assert done(purge(NOW, AGES, dry_run=True)) == done(purge(NOW, AGES)) == {"leases": {"lease": 4}}
    assert set(Lease.objects.all()) == {held, released}


def test_a_dry_run_says_what_would_be_done_and_does_nothing():
    session(account("bo", state="paused").id)
    session(4711, "soft")
    assert done(purge(NOW, AGES, dry_run=True)) == {"marked": {"thread-id": 1}, "soft": {"thread-id": 1}}
    assert Session.objects.filter(abandoned_at=None).count() == 2


def test_a_preview_is_what_goes_then_and_nothing_else():
    gone, used = session(4711, "soft"), session(4711, "soft")
    marked, back = session(4711), session(account("bo", state="paused").id)
    shown = preview(NOW, AGES)
    assert {group: set(rows) for group, rows in shown.rows.items()} == {
        Group.SOFT: {gone.pk, used.pk},
        Group.MARKED: {marked.pk, back.pk},
        Group.ABANDONED: set(),
        Group.TURN_STATES: set(),
        Group.LEASES: set(),
    }
    Session.objects.filter(pk=used.pk).update(used_at=NOW)
    Account.objects.update(state="active")
    late = session(4711, "soft")
    assert done(purge_previewed(shown, AGES)) == {"soft": {"thread-id": 1}, "marked": {"thread-id": 1}}
    assert set(Session.objects.values_list("pk", flat=True)) == {used.pk, marked.pk, back.pk, late.pk}
    assert list(Session.objects.exclude(abandoned_at=None)) == [marked]


def test_it_says_what_it_did_of_each_kind():
    session(4711, "soft")
    session(4711, "soft", kind="prompt_cache_key")
    session(4711)
    out = io.StringIO()
    for arguments, said in ((["--dry-run"], "Would purge"), ([], "Purged")):
        call_command("purge_stale_owners", "--older-than", "6h", *arguments, stdout=out)
        assert out.getvalue().splitlines()[-1] == (
            f"{said}: 2 soft ones expired (1 prompt_cache_key, 1 thread-id); 0 turn states of turns long over; "
            "1 newly marked as abandoned (1 thread-id); 0 abandoned ones deleted; 0 leases of dead replicas."
        )


def test_every_hour_the_same_is_done():
    session(4711, "soft")
    assert purge_stale_owners().startswith("Purged: 1 soft ones expired (1 thread-id);")


def in_another_connection(work: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        try:
            work()
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("strength", ["soft", "hard"])
def test_a_row_that_is_used_at_the_same_moment_is_left_alone(strength):
    """The purge has to wait for the other one's row, and then finds it used. SQLite lets nobody else write at all."""
    if connection.vendor != "postgresql":
        pytest.skip("two writers at a time need PostgreSQL; test_the_same_holds_on_postgresql runs this there")
    row = session(4711, strength)
    purged: list[Purged] = []
    with transaction.atomic():
        Session.objects.filter(pk=row.pk).update(used_at=NOW)
        thread = in_another_connection(lambda: purged.append(purge(NOW, AGES)))
        thread.join(0.3)
        assert thread.is_alive(), "it did not wait"
    thread.join(10)
    assert [done(each) for each in purged] == [{}]
    assert Session.objects.get().abandoned_at is None


@pytest.mark.slow
@pytest.mark.django_db(databases=[])
def test_the_same_holds_on_postgresql(tmp_path: Path):
    url = f"{require_postgres().rpartition('/')[0]}/sessions_{uuid.uuid4().hex[:8]}"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", __file__, "-n", "0", "-m", "not slow", "--create-db"],
        cwd=ROOT,
        env=environment(tmp_path, {"DATABASE_URL": url}),
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
