"""What a key may use: so many requests and tokens in a window of time, so many turns at once. Pure.

Windows are those of the calendar, in UTC: they begin with the minute, the day and the month, so that every process
counts in the same ones and a client can be told when it may go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple


class Unit(StrEnum):
    """What is counted."""

    REQUESTS = "requests"
    TOKENS = "tokens"


class Span(StrEnum):
    """How long a window is."""

    MINUTE = "minute"
    DAY = "day"
    MONTH = "month"


class Window(NamedTuple):
    """One window; `start` is unix seconds."""

    span: Span
    start: int

    @property
    def end(self) -> int:
        """When the next one begins, unix seconds."""
        start = datetime.fromtimestamp(self.start, UTC)
        if self.span is Span.MONTH:
            # No month has more than 31 days, and the first of one plus 31 is in the next.
            return int((start + timedelta(days=31)).replace(day=1).timestamp())
        return self.start + (60 if self.span is Span.MINUTE else 86_400)


def window_of(span: Span, now: float) -> Window:
    """The window that `now` (unix seconds) lies in."""
    moment = datetime.fromtimestamp(now, UTC).replace(second=0, microsecond=0)
    if span is not Span.MINUTE:
        moment = moment.replace(hour=0, minute=0)
    if span is Span.MONTH:
        moment = moment.replace(day=1)
    return Window(span, int(moment.timestamp()))


def windows_at(now: float) -> tuple[Window, ...]:
    """The windows that `now` (unix seconds) lies in, one of each span."""
    return _windows_of_minute(now // 60)


# Every turn asks several times, and the answer is the same for a minute.
@lru_cache(maxsize=2)
def _windows_of_minute(minute: float) -> tuple[Window, ...]:
    return tuple(window_of(span, minute * 60) for span in Span)


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `most` of a unit in a window."""

    unit: Unit
    span: Span
    most: int

    @property
    def code(self) -> str:
        """The limit as clients see it."""
        return f"key_{self.unit}_per_{self.span}"


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """All limits of one key; `turns` is how many it may have running at once, None for any number."""

    windows: tuple[Limit, ...] = ()
    turns: int | None = None

    def __bool__(self) -> bool:
        return bool(self.windows) or self.turns is not None


NO_LIMITS = KeyLimits()
