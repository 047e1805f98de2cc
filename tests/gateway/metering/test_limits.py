"""Windows of the calendar, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metering.limits import NO_LIMITS, KeyLimits, Limit, Span, Unit, Window, window_of, windows_at

MOMENTS = st.floats(0, 4e9)


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("span", "start", "end"),
    [
        (Span.MINUTE, "2028-02-29T23:59:00", "2028-03-01T00:00:00"),
        (Span.DAY, "2028-02-29T00:00:00", "2028-03-01T00:00:00"),
        (Span.MONTH, "2028-02-01T00:00:00", "2028-03-01T00:00:00"),
    ],
)
def test_a_window_is_the_calendars(span: Span, start: str, end: str) -> None:
    window = window_of(span, at("2028-02-29T23:59:59.9"))
    assert (window.start, window.end) == (at(start), at(end))


@given(MOMENTS, st.sampled_from(Span))
def test_every_moment_lies_in_one_window_and_the_next_begins_where_it_ends(now: float, span: Span) -> None:
    window = window_of(span, now)
    assert window.start <= now < window.end
    assert window_of(span, window.end) == Window(span, window.end)
    assert window_of(span, window.end - 1) == window


def test_a_limit_has_a_name_that_clients_see() -> None:
    assert Limit(Unit.TOKENS, Span.DAY, 1).code == "key_tokens_per_day"


@given(MOMENTS)
def test_a_moment_lies_in_one_window_of_each_span(now: float) -> None:
    assert windows_at(now) == tuple(window_of(span, now) for span in Span)


def test_a_key_with_any_limit_is_limited() -> None:
    assert not NO_LIMITS
    assert KeyLimits((Limit(Unit.TOKENS, Span.DAY, 1),))
    assert KeyLimits(turns=0)
