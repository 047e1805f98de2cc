"""What the charts are drawn from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test.utils import CaptureQueriesContext

from dashboard.overview.series import SPANS, load, percentile, total
from gateway.watch.rollup import BOUNDS, roll_up
from tests.dashboard.cast import turn

NOON = datetime(2026, 11, 30, 12, 0, 30, tzinfo=UTC)


def ended(ago: timedelta, **fields: Any) -> None:
    turn(settled_at=NOON - ago, **fields)


@pytest.mark.django_db
@pytest.mark.parametrize("name", SPANS)
def test_a_span_has_all_its_steps_until_now_empty_ones_too(name: str) -> None:
    span = SPANS[name]
    steps = load(span, NOON)
    assert len(steps) == span.count
    assert steps[-1].start <= NOON < steps[-1].start + timedelta(seconds=span.seconds)
    assert {step.turns for step in steps} == {0}


@pytest.mark.django_db
def test_each_turn_is_in_the_step_in_which_it_ended() -> None:
    ended(timedelta(0)), ended(timedelta(minutes=5), outcome="failed", code="server_error"), ended(timedelta(hours=3))
    roll_up(NOON)
    steps = load(SPANS["1h"], NOON)
    assert (steps[-1].turns, steps[-6].turns, steps[-6].errors) == (1, 1, {"server_error": 1})
    assert total(steps).turns == 2
    assert total(load(SPANS["24h"], NOON)).turns == 3


@pytest.mark.django_db
def test_a_series_can_be_of_one_account_or_key() -> None:
    ended(timedelta(0), account_id=1), ended(timedelta(0), account_id=2)
    roll_up(NOON)
    assert total(load(SPANS["1h"], NOON, account_id=2)).turns == 1


@pytest.mark.django_db
def test_the_turns_themselves_are_not_read(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(1) as queries:
        load(SPANS["7d"], NOON)
    assert isinstance(queries, CaptureQueriesContext)
    assert "gateway_turn" not in queries.captured_queries[0]["sql"]


def test_a_percentile_lies_in_the_column_of_its_turn() -> None:
    counts = [0] * len(BOUNDS)
    assert percentile(counts, 0.5) is None
    counts[1] = 100  # 125 to 250 ms
    assert percentile(counts, 0.5) == 187.5
    counts[3] = 100  # 500 to 1000 ms
    assert percentile(counts, 0.5) == 250
    assert percentile(counts, 0.95) == 950
    assert percentile([*([0] * (len(BOUNDS) - 1)), 4], 1.0) == 64_000
