"""Numbers and times as one reads them at a glance."""

from __future__ import annotations

from datetime import datetime

from dashboard.columns import NOTHING

UNITS = ((1_000_000_000, "B"), (1_000_000, "M"), (1_000, "k"))


def compact(number: float) -> str:
    """`950`, `12.4k`, `3.1M`."""
    for size, unit in UNITS:
        if number >= size:
            text = f"{number / size:.{0 if number >= 100 * size else 1}f}"
            return text.removesuffix(".0") + unit
    return f"{number:.0f}"


def percent(share: float) -> str:
    """A share of 0 to 1: `12 %`, and `0.4 %` where that matters."""
    if 0 < share < 0.1:
        return f"{share * 100:.1f} %"
    return f"{share * 100:.0f} %"


def dollars(micros: int) -> str:
    """Millionths of a dollar: `$3.42`, `$1,250`, `$0.0042`."""
    amount = micros / 1_000_000
    if amount >= 1000:
        return f"${amount:,.0f}"
    return f"${amount:.2f}" if amount >= 0.01 or not amount else f"${amount:.4f}"


def until(at: float | None, now: float) -> str:
    """Time left until `at` (unix seconds): `3 h 12 min`, `5 d 2 h`, `<1 min`."""
    if at is None:
        return NOTHING
    minutes = int(at - now) // 60
    if minutes < 1:
        return "<1 min"
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def age(seconds: float) -> str:
    """How long something has lasted: `4 s`, `3 min`, `2 h 5 min`."""
    seconds = max(0.0, seconds)
    return f"{seconds:.0f} s" if seconds < 60 else until(seconds, 0.0)


def size(count: int) -> str:
    """Bytes: `512 B`, `1.2 kB`, `3.4 MB`."""
    return f"{count} B" if count < 1000 else f"{compact(count).replace('M', ' M').replace('k', ' k')}B"


def clock(at: datetime, seconds: int) -> str:
    """A moment on the axis of a chart whose steps are so many seconds long."""
    return f"{at:%a %H:%M}" if seconds >= 3600 else f"{at:%H:%M}"
