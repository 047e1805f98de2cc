"""The pool at a glance."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from accounts.models import AccountCircuit, AccountEvent
from accounts.states import State, What
from dashboard.overview.pool import STATE_TONES, load_pool
from gateway.models import Replica
from gateway.watch.snapshot import LiveAccount, Snapshot
from gateway.watch.store import tell
from tests.dashboard.cast import account, limited, turn

pytestmark = pytest.mark.django_db


def replica(snapshot: Snapshot, beat: timedelta = timedelta(0)) -> None:
    now, number = timezone.now(), uuid.uuid4()
    Replica.objects.create(id=number, host="here", process=1, started_at=now, heartbeat_at=now - beat)
    tell(number, snapshot, now)


def test_an_empty_pool_is_a_pool() -> None:
    pool = load_pool(timezone.now())
    assert (pool.usable, pool.replicas, pool.per_minute, pool.errors) == (0, 0, 0, 0.0)


def test_accounts_are_counted_by_what_keeps_turns_away() -> None:
    account("ada"), limited("bo", hours=1), account("cy", State.NEEDS_LOGIN), account("dee", State.PAUSED)
    AccountCircuit.objects.create(account=account("eli"), state="open", until=timezone.now() + timedelta(minutes=1))
    pool = load_pool(timezone.now())
    assert pool.counts == {"usable": 1, "limited": 1, "circuit open": 1, "needing login": 1, "paused": 1}
    assert [card.state for card in pool.cards] == ["active", "limited", "needs login", "paused", "circuit open"]


def test_an_ejection_that_is_over_does_not_keep_turns_away() -> None:
    AccountCircuit.objects.create(account=account("eli"), state="open", until=timezone.now() - timedelta(minutes=1))
    (card,) = load_pool(timezone.now()).cards
    assert (card.usable, card.state) == (True, "circuit half open")


def test_what_all_living_replicas_carry_is_added_up() -> None:
    ada = account("ada")
    carried = {str(ada.id): LiveAccount(active=2, waiting=1, lanes=3)}
    for beat in (timedelta(0), timedelta(seconds=5), timedelta(minutes=1)):
        replica(Snapshot(held=4, waiting=1, open_lanes=3, accounts=carried), beat)
    pool = load_pool(timezone.now())
    assert (pool.running, pool.waiting, pool.lanes, pool.replicas) == (8, 2, 6, 2)
    assert (pool.cards[0].active, pool.cards[0].waiting, pool.cards[0].lanes) == (4, 2, 6)


def test_windows_are_told_apart_by_their_length_not_by_their_slot() -> None:
    now = timezone.now().timestamp()
    weekly = {"seen_at": now, "used_percent": 40.0, "minutes": 10080, "resets_at": now + 9000}
    account("ada", quota={"windows": {"codex/primary": weekly}})
    short, long = load_pool(timezone.now()).cards[0].usages
    assert (short.used, long.used, long.left) == (None, 0.4, 0.6)


def test_a_window_that_was_reset_is_unknown_again() -> None:
    now = timezone.now().timestamp()
    over = {"seen_at": now - 9000, "used_percent": 90.0, "minutes": 300, "resets_at": now - 1}
    account("ada", quota={"windows": {"codex/primary": over}})
    assert load_pool(timezone.now()).cards[0].usages[0].used is None


def test_usage_that_cannot_be_read_is_no_reason_to_show_nothing() -> None:
    account("ada", quota={"windows": 5})
    assert load_pool(timezone.now()).cards[0].usages[0].used is None


def test_the_newest_trouble_of_a_day_is_shown_and_an_older_one_is_not() -> None:
    ada, bo = account("ada"), account("bo")
    for each, hours in ((ada, 1), (ada, 2), (bo, 30)):
        AccountEvent.objects.create(
            account=each, account_name=each.name, what=What.CIRCUIT_OPENED, why=f"{hours} h", by="traffic",
            at=timezone.now() - timedelta(hours=hours),
        )  # fmt: skip
    assert [card.trouble for card in load_pool(timezone.now()).cards] == ["circuit opened: 1 h", ""]


def test_the_last_minute_says_how_much_and_how_well() -> None:
    now = timezone.now()
    for outcome, ago in (("completed", 5), ("completed", 5), ("client_gone", 5), ("failed", 5), ("failed", 90)):
        turn(outcome=outcome, settled_at=now - timedelta(seconds=ago))
    pool = load_pool(now)
    assert (pool.per_minute, pool.errors) == (4, 0.25)


def test_every_state_has_a_colour() -> None:
    assert STATE_TONES.keys() == set(State)
