"""What a purge deletes, marks and leaves alone."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from accounts.models import Account
from gateway.continuity.purge import Purged, purge
from gateway.models import Session

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
TTL, AGE = timedelta(minutes=30), timedelta(hours=6)
OLD = NOW - timedelta(hours=7)

pytestmark = pytest.mark.django_db


def account(name: str, **changes) -> Account:
    return Account.objects.create(name=name, kind="openai", base_url="https://api.openai.com/v1", **changes)


def session(owner: int, strength: str = "hard", used_at: datetime = OLD, **changes) -> Session:
    digest = f"{Session.objects.count():064}"
    return Session.objects.create(
        client=1,
        kind="thread-id",
        digest=digest,
        account_id=owner,
        strength=strength,
        used_at=used_at,
        replica=uuid.UUID(int=1),
        **changes,
    )


def test_soft_sessions_past_their_time_are_deleted_and_younger_ones_stay():
    ada = account("ada")
    old, young = session(ada.id, "soft", NOW - TTL * 2), session(ada.id, "soft", NOW - TTL / 2)
    assert purge(NOW, TTL, AGE) == Purged(soft=1, marked=0, abandoned=0)
    assert list(Session.objects.all()) == [young]
    assert old.pk is not None


@pytest.mark.parametrize("state", ["paused", "needs_login", "disabled", "limited"])
def test_a_hard_session_of_an_unusable_account_is_marked_and_deleted_as_long_again_later(state):
    kept = session(account("ada").id)
    left = session(account("bo", state=state).id)
    assert purge(NOW, TTL, AGE) == Purged(soft=0, marked=1, abandoned=0)
    assert purge(NOW + AGE / 2, TTL, AGE) == Purged(soft=0, marked=0, abandoned=0)
    assert purge(NOW + AGE + TTL, TTL, AGE) == Purged(soft=0, marked=0, abandoned=1)
    assert list(Session.objects.all()) == [kept]
    assert left.pk is not None


def test_a_hard_session_of_a_deleted_account_is_let_go():
    session(4711)
    assert purge(NOW, TTL, AGE).marked == 1


def test_a_limit_that_ends_is_no_reason_to_let_go():
    session(account("bo", state="limited", state_until=NOW + timedelta(days=5)).id)
    assert purge(NOW, TTL, AGE) == Purged(soft=0, marked=0, abandoned=0)


def test_a_session_that_is_used_again_after_it_was_marked_stays():
    row = session(account("bo", state="paused").id)
    purge(NOW, TTL, AGE)
    Session.objects.filter(pk=row.pk).update(used_at=NOW + AGE, abandoned_at=None)
    assert purge(NOW + AGE + TTL, TTL, AGE) == Purged(soft=0, marked=0, abandoned=0)


def test_a_dry_run_says_what_would_be_done_and_does_nothing():
    session(account("bo", state="paused").id)
    session(4711, "soft")
    assert purge(NOW, TTL, AGE, dry_run=True) == Purged(soft=1, marked=1, abandoned=0)
    assert Session.objects.filter(abandoned_at=None).count() == 2
