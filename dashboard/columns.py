"""How values look in lists and on detail pages. All functions escape what they are given."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum

from django.utils.html import format_html
from django.utils.timesince import timesince, timeuntil

NOTHING = "–"  # noqa: RUF001  # an en dash is what an empty cell shows


# Of the digest that a conversation is stored under so many digits are shown.
DIGEST_SHOWN = 12


class Tone(StrEnum):
    """What a coloured word means; `admin.css` has a colour for each."""

    GOOD = "good"
    BUSY = "busy"
    WARNING = "warning"
    BAD = "bad"
    OFF = "off"


def coloured(word: str, tone: Tone) -> str:
    """`word` on the colour of `tone`; underscores become spaces."""
    return format_html('<span class="word word-{}">{}</span>', tone.value, word.replace("_", " "))


def session_name(session: str) -> str:
    """A conversation as the ledger names it (`thread-id:<digest>`), short enough to be read."""
    kind, _, digest = session.partition(":")
    return f"{kind} {digest[:DIGEST_SHOWN]}".strip()


def moment(at: datetime) -> str:
    """A time in UTC, to the second."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def ago(at: datetime | None, now: datetime) -> str:
    """How long ago `at` was, with the exact time on hover; "never" for None."""
    if at is None:
        return "never"
    text = "just now" if (now - at).total_seconds() < 60 else f"{timesince(at, now, depth=1)} ago"
    return format_html('<span title="{}">{}</span>', moment(at), text)


def ahead(at: datetime, now: datetime) -> str:
    """How far away a time to come is, with the exact time on hover."""
    return format_html('<span title="{}">in {}</span>', moment(at), timeuntil(at, now, depth=1))


def duration(milliseconds: int | None) -> str:
    """Milliseconds in the unit one reads: `54 ms`, `1.6 s`, `3 min 5 s`."""
    if milliseconds is None:
        return NOTHING
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f} s"
    minutes, seconds = divmod(round(milliseconds / 1000), 60)
    return f"{minutes} min {seconds} s"
