"""The sums say what the ledger says, however often and whenever they are made."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db.models import Sum

from gateway.models import Turn
from gateway.turns.turn import Outcome
from gateway.watch import rollup
from gateway.watch.models import Rollup, Total
from gateway.watch.rollup import HOUR, MINUTE, QUARTER, roll_up
from tests.dashboard.cast import turn

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def ended(at: datetime, **fields: Any) -> Turn:
    return turn(received_at=at - timedelta(seconds=1), settled_at=at, settled_ms=1000, **fields)


def sums(seconds: int = MINUTE, **having: object) -> dict[str, int]:
    return {
        name: Rollup.objects.filter(seconds=seconds, **having).aggregate(total=Sum(name))["total"] or 0
        for name in rollup.SUMS
    }


def test_turns_count_in_the_minute_in_which_they_ended() -> None:
    ended(NOON - timedelta(seconds=1)), ended(NOON), ended(NOON + timedelta(seconds=59))
    roll_up(NOON + timedelta(minutes=5))
    counted = Rollup.objects.filter(seconds=MINUTE).values_list("start", "turns").order_by("start")
    assert list(counted) == [(NOON - timedelta(minutes=1), 1), (NOON, 2)]


def test_a_turn_that_still_runs_is_not_counted() -> None:
    turn(outcome="", settled_at=None)
    assert roll_up(NOON) == 0


def test_sums_are_kept_apart_by_account_key_model_and_error() -> None:
    ended(NOON, account_id=1, key_id=1), ended(NOON, account_id=2, key_id=1), ended(NOON, account_id=1, key_id=None)
    ended(NOON, account_id=1, key_id=1, model="other"), ended(NOON, account_id=1, key_id=1, outcome="failed")
    roll_up(NOON)
    assert Rollup.objects.filter(seconds=MINUTE).count() == 5


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"outcome": Outcome.COMPLETED}, ""),
        ({"outcome": Outcome.CLIENT_GONE, "cause": "client_gone"}, ""),
        ({"outcome": Outcome.CANCELLED}, ""),
        ({"outcome": Outcome.REFUSED, "cause": "usage_limit", "code": "usage_limit_reached"}, "usage_limit"),
        ({"outcome": Outcome.FAILED, "code": "server_error"}, "server_error"),
        ({"outcome": Outcome.FAILED}, "failed"),
        ({"outcome": Outcome.INTERRUPTED, "cause": "process_died"}, "process_died"),
    ],
)
def test_an_error_is_named_by_its_cause_else_its_code_else_its_outcome(fields: dict[str, str], error: str) -> None:
    ended(NOON, **fields)
    roll_up(NOON)
    assert set(Rollup.objects.values_list("error", flat=True)) == {error}


def test_the_latency_column_is_the_smallest_that_holds_the_first_event() -> None:
    for started in (0, 125, 126, 32000, 32001, None):
        ended(NOON, started_ms=started)
    roll_up(NOON)
    counted = sums()
    columns = {name: counted[name] for name, _ in rollup.BOUNDS if counted[name]}
    assert columns == {"first_125": 2, "first_250": 1, "first_32000": 1, "first_later": 1}
    assert counted["turns"] == 6


def test_quarters_and_hours_hold_what_their_minutes_hold() -> None:
    for minute in (0, 14, 15, 59, 60):
        ended(NOON + timedelta(minutes=minute))
    roll_up(NOON + timedelta(hours=2))
    assert [turns for (turns,) in Rollup.objects.filter(seconds=HOUR).order_by("start").values_list("turns")] == [4, 1]
    assert Rollup.objects.filter(seconds=QUARTER, start=NOON).get().turns == 2
    assert sums(MINUTE) == sums(QUARTER) == sums(HOUR)


def test_counting_twice_changes_nothing() -> None:
    for second in range(0, 600, 45):
        ended(NOON + timedelta(seconds=second))
    roll_up(NOON + timedelta(minutes=10))
    before = list(Rollup.objects.order_by("seconds", "start").values())
    roll_up(NOON + timedelta(minutes=10))
    assert list(Rollup.objects.order_by("seconds", "start").values()) == before


def test_a_turn_that_is_written_a_moment_late_is_counted_the_next_time() -> None:
    ended(NOON + timedelta(minutes=2))
    roll_up(NOON + timedelta(minutes=3))
    ended(NOON + timedelta(minutes=1))
    roll_up(NOON + timedelta(minutes=4))
    assert sums(MINUTE)["turns"] == sums(HOUR)["turns"] == 2


def test_counting_goes_on_where_a_long_backlog_made_it_stop() -> None:
    for minute in range(0, 180, 9):
        ended(NOON + timedelta(minutes=minute))
    now = NOON + timedelta(hours=3)
    while Rollup.objects.filter(seconds=HOUR).aggregate(total=Sum("turns"))["total"] != 20:
        assert roll_up(now, at_once=7) > 0
    assert sums(HOUR)["turns"] == 20


def test_an_hour_of_which_minutes_were_forgotten_is_counted_whole_again() -> None:
    ended(NOON), ended(NOON + timedelta(minutes=58))
    roll_up(NOON + timedelta(hours=1))
    later = NOON + timedelta(hours=5)
    roll_up(later)
    assert not Rollup.objects.filter(seconds=MINUTE).exists()
    ended(later)
    roll_up(later)
    assert Rollup.objects.get(seconds=HOUR, start=NOON).turns == 2
    assert Rollup.objects.get(seconds=HOUR, start=later).turns == 1


def test_old_sums_are_forgotten_the_finer_the_sooner() -> None:
    ended(NOON)
    roll_up(NOON)
    for later, left in (
        (timedelta(hours=5), {QUARTER, HOUR}),
        (timedelta(days=4), {HOUR}),
        (timedelta(days=500), set()),
    ):
        Turn.objects.all().delete()
        roll_up(NOON + later)
        assert set(Rollup.objects.values_list("seconds", flat=True)) == left


def test_the_sums_of_a_busy_day_are_those_of_the_ledger() -> None:
    chance = random.Random(5)
    for _ in range(100):
        ended(
            NOON + timedelta(seconds=chance.randrange(7200)),
            account_id=chance.choice([1, 2, None]),
            key_id=chance.choice([1, 2]),
            outcome=chance.choice(list(Outcome)),
            input_tokens=chance.choice([None, chance.randrange(1000)]),
            started_ms=chance.choice([None, chance.randrange(40_000)]),
        )
    for minutes in (10, 11, 119, 125):
        roll_up(NOON + timedelta(minutes=minutes))
    tokens = Turn.objects.aggregate(total=Sum("input_tokens"))["total"]
    accounts = Counter(each or 0 for each in Turn.objects.values_list("account_id", flat=True))
    for seconds in (MINUTE, QUARTER, HOUR):
        assert sums(seconds)["turns"] == 100
        assert sums(seconds)["input_tokens"] == tokens
        assert Total.objects.filter(seconds=seconds).aggregate(total=Sum("turns"))["total"] == 100
        assert {each: sums(seconds, account_id=each)["turns"] for each in accounts} == accounts
