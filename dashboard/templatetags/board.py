"""What the overview's templates need beside Django's own filters."""

from __future__ import annotations

from datetime import datetime

from django import template
from django.utils.safestring import SafeString

from dashboard import svg
from dashboard.columns import NOTHING, Tone, coloured, duration, moment
from dashboard.overview.pool import Usage
from dashboard.turns.outcomes import tone_of
from dashboard.words import age, percent, size, until
from gateway.models import Turn

register = template.Library()
# From this share on a window is shown as nearly, and as wholly, used up.
NEARLY, WHOLLY = 0.8, 0.98


@register.simple_tag
def pill(word: str, tone: Tone) -> str:
    """A word on the colour of its tone."""
    return coloured(word, tone)


@register.simple_tag
def outcome_pill(turn: Turn) -> str:
    """How a turn ended, or that it runs."""
    return coloured(turn.outcome or "running", tone_of(turn))


@register.simple_tag
def usage_meter(usage: Usage) -> SafeString:
    """How much of a window is used."""
    if usage.used is None:
        return svg.meter(None, "meter-off", f"{usage.title}: unknown")
    level = "meter-bad" if usage.used >= WHOLLY else "meter-warn" if usage.used >= NEARLY else "meter-good"
    return svg.meter(usage.used, level, f"{usage.title}: {percent(usage.used)} used")


@register.filter
def as_percent(share: float | None) -> str:
    """A share of 0 to 1 in words."""
    return "unknown" if share is None else percent(share)


@register.simple_tag
def time_left(at: float | None, now: datetime) -> str:
    """From `now` to `at` (unix seconds)."""
    return until(at, now.timestamp())


@register.simple_tag
def since(at: datetime, now: datetime) -> str:
    """How long ago."""
    return age((now - at).total_seconds())


@register.filter
def as_moment(at: datetime) -> str:
    """A time in UTC."""
    return moment(at)


@register.filter
def milliseconds(count: int | None) -> str:
    """A duration in the unit one reads."""
    return duration(count)


@register.filter
def as_age(seconds: float | None) -> str:
    """How long something has lasted."""
    return NOTHING if seconds is None else age(seconds)


@register.filter
def as_size(count: int) -> str:
    """Bytes in the unit one reads."""
    return size(count)
