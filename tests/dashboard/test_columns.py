"""Values in words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from dashboard.columns import Tone, ago, ahead, coloured, duration, moment

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(None, "–"), (0, "0 ms"), (999, "999 ms"), (1600, "1.6 s"), (59_990, "60.0 s"), (185_000, "3 min 5 s")],  # noqa: RUF001
)
def test_a_duration_has_the_unit_one_reads(milliseconds: int | None, text: str) -> None:
    assert duration(milliseconds) == text


def test_a_time_is_shown_in_utc_whatever_its_own_zone() -> None:
    assert moment(NOON.astimezone(timezone(timedelta(hours=2)))) == "2026-11-30 12:00:00 UTC"


def test_what_has_just_been_used_and_what_never_was_are_told_apart() -> None:
    assert ago(None, NOON) == "never"
    assert "just now" in ago(NOON - timedelta(seconds=59), NOON)
    assert "1\xa0minute ago" in ago(NOON - timedelta(seconds=60), NOON)


def test_a_time_to_come_says_how_far_away_it_is() -> None:
    assert ahead(NOON + timedelta(hours=3), NOON) == '<span title="2026-11-30 15:00:00 UTC">in 3\xa0hours</span>'


def test_a_coloured_word_is_escaped_and_read_without_underscores() -> None:
    assert coloured("needs_login", Tone.BAD) == '<span class="word word-bad">needs login</span>'
    assert "<b>" not in coloured("<b>", Tone.OFF)
