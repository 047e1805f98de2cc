"""Numbers and times at a glance."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dashboard.words import age, clock, compact, dollars, percent, size, until


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (950, "950"), (1000, "1k"), (12_400, "12.4k"), (104_000_000, "104M"), (3_100_000_000, "3.1B")],
)
def test_a_number_has_no_more_digits_than_one_reads(number: int, text: str) -> None:
    assert compact(number) == text


@pytest.mark.parametrize(("share", "text"), [(0, "0 %"), (0.004, "0.4 %"), (0.5, "50 %"), (1, "100 %")])
def test_a_small_share_is_not_rounded_away(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("micros", "text"), [(0, "$0.00"), (4200, "$0.0042"), (3_420_000, "$3.42"), (1_250_000_000, "$1,250")]
)
def test_money_is_shown_in_dollars(micros: int, text: str) -> None:
    assert dollars(micros) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "<1 min"), (59, "<1 min"), (720, "12 min"), (3600, "1 h"), (11_520, "3 h 12 min"), (439_200, "5 d 2 h")],
)
def test_the_time_left_has_two_units_at_the_most(seconds: int, text: str) -> None:
    assert until(1000.0 + seconds, 1000.0) == text


def test_ages_sizes_and_moments_are_short() -> None:
    assert (age(4.2), age(200), age(7500)) == ("4 s", "3 min", "2 h 5 min")
    assert (size(512), size(1200), size(3_400_000)) == ("512 B", "1.2 kB", "3.4 MB")
    noon = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
    assert (clock(noon, 60), clock(noon, 3600)) == ("12:00", "Mon 12:00")
