"""The ledger in sums, so that nobody who draws a chart has to read it.

Turns are counted in the minute in which they ended, and minutes are added up to quarters and hours. A minute is
always counted anew from the ledger and replaces what was there, so that doing it twice, or going on after a crash,
changes nothing. Where to go on is read from the sums themselves. What changes in the ledger behind that place is noted
by who changes it (`late.py`), and counted again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, cast

from django.db import models, transaction
from django.db.models import Case, Count, F, Max, Q, Sum, Value, When
from django.db.models.functions import Coalesce, NullIf

from gateway.models import Turn
from gateway.turns.turn import Outcome
from gateway.upsert import Upsert
from gateway.watch import late
from gateway.watch.models import Rollup, Total

MINUTE, QUARTER, HOUR = 60, 900, 3600
# How long sums are kept: minutes for the last hour, quarters for the last day, hours for the years to come.
KEPT = {MINUTE: timedelta(hours=3), QUARTER: timedelta(days=3), HOUR: timedelta(days=400)}
# Minutes before the newest sum are counted again, since a turn is written a moment after it has ended.
AGAIN = timedelta(minutes=3)
# One call counts so many minutes, or old hours, at the most; the next one goes on.
AT_ONCE = 1500
# Upper bounds of the latency columns, in milliseconds; None stands for all that is slower.
BOUNDS: tuple[tuple[str, int | None], ...] = (
    *((f"first_{bound}", bound) for bound in (125, 250, 500, 1000, 2000, 4000, 8000, 16000, 32000)),
    ("first_later", None),
)
ERRORS = (Outcome.FAILED, Outcome.REFUSED, Outcome.UPSTREAM_LOST, Outcome.INTERRUPTED)

GROUP = ("account_id", "key_id", "model", "error")
TOKENS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
SUMS = ("turns", *TOKENS, "cost_micros", "unpriced", *(name for name, _ in BOUNDS))
ROLLUPS = Upsert(Rollup, unique=["seconds", "start", *GROUP])
TOTALS = Upsert(Total, unique=["seconds", "start", "error"])


def roll_up(now: datetime, at_once: int = AT_ONCE) -> int:
    """Count what has ended since the last call, and forget sums that are old; how many spans were counted."""
    recent = floor(now - KEPT[MINUTE], HOUR)
    counted = _count_late(recent, at_once)
    for hour, starts in groupby(_starts(now, recent, at_once), key=lambda start: floor(start, HOUR)):
        spans = list(starts)
        with transaction.atomic():
            _roll(hour, spans, recent)
        counted += len(spans)
    _forget(now)
    return counted


def _count_late(recent: datetime, at_once: int) -> int:
    """Count again where the ledger has changed since; how many spans. What is still to be counted needs nothing."""
    cursor = _last()
    if cursor is None:
        return 0
    counted = 0
    for hour, moments in groupby(late.noted(cursor, at_once), key=lambda each: floor(each.at, HOUR)):
        noted = list(moments)
        minutes = sorted({floor(each.at, MINUTE) for each in noted})
        with transaction.atomic():
            late.done(noted)
            _roll(hour, minutes, recent)
        counted += len(minutes)
    return counted


def _roll(hour: datetime, minutes: Sequence[datetime], recent: datetime) -> None:
    """Count minutes of one hour, or the whole of it where minutes are not kept any more."""
    if hour < recent:
        _roll_old(hour)
    else:
        _roll_recent(hour, minutes)


def floor(at: datetime, seconds: int) -> datetime:
    """The beginning of the span of so many seconds that `at` is in."""
    return datetime.fromtimestamp(at.timestamp() // seconds * seconds, UTC)


def _starts(now: datetime, recent: datetime, at_once: int) -> Iterator[datetime]:
    """The minutes that have to be counted, in order, and of hours before `recent` the hour; empty ones are left out."""
    cursor = _last()
    for _ in range(at_once):
        ended = Turn.objects.filter(settled_at__lte=now)
        if cursor is not None:
            ended = ended.filter(settled_at__gte=cursor)
        first = ended.order_by("settled_at").values_list("settled_at", flat=True).first()
        if first is None:
            return
        seconds = MINUTE if first >= recent else HOUR
        start = floor(first, seconds)
        yield start
        cursor = start + timedelta(seconds=seconds)


def _last() -> datetime | None:
    """Where to go on: a little before the newest minute, or at the newest hour where its minutes are forgotten."""
    newest = dict(Total.objects.filter(seconds__in=(MINUTE, HOUR)).values_list("seconds").annotate(Max("start")))
    if MINUTE in newest:
        return floor(newest[MINUTE] - AGAIN, MINUTE)
    return newest.get(HOUR)


def _roll_recent(hour: datetime, minutes: Sequence[datetime]) -> None:
    """Count minutes of one hour, and what they are parts of with them."""
    for minute in minutes:
        _replace(MINUTE, minute, _of_ledger(MINUTE, minute))
    for quarter in sorted({floor(minute, QUARTER) for minute in minutes}):
        _replace(QUARTER, quarter, _of_sums(QUARTER, quarter))
    _replace(HOUR, hour, _of_sums(HOUR, hour))


def _roll_old(hour: datetime) -> None:
    """Count an hour whose minutes would be forgotten at once."""
    for quarter in range(0, HOUR, QUARTER):
        start = hour + timedelta(seconds=quarter)
        _replace(QUARTER, start, _of_ledger(QUARTER, start))
    _replace(HOUR, hour, _of_ledger(HOUR, hour))


def _replace(seconds: int, start: datetime, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the sums of a span, and those of all its groups together; groups that are no more are deleted."""
    totals: dict[str, dict[str, Any]] = {}
    written: list[dict[str, Any]] = []
    for row in rows:
        written.append({"seconds": seconds, "start": start, **row})
        total = totals.setdefault(row["error"], {"error": row["error"], **dict.fromkeys(SUMS, 0)})
        for name in SUMS:
            total[name] += row[name]
    ROLLUPS.write(written)
    TOTALS.write([{"seconds": seconds, "start": start, **total} for total in totals.values()])
    _drop(Rollup, GROUP, seconds, start, written)
    _drop(Total, ("error",), seconds, start, totals.values())


def _drop(
    sums: type[Rollup | Total], group: Sequence[str], seconds: int, start: datetime, kept: Iterable[Mapping[str, Any]]
) -> None:
    """Delete the sums of a span whose group has no turn in it any more."""
    known = {tuple(row[name] for name in group) for row in kept}
    there = sums.objects.filter(seconds=seconds, start=start).values_list("pk", *group)
    gone = [pk for pk, *one in there if tuple(one) not in known]
    if gone:
        sums.objects.filter(pk__in=gone).delete()


def _of_ledger(seconds: int, start: datetime) -> Iterable[Mapping[str, Any]]:
    """The turns that ended in a span, by group."""
    ended = Turn.objects.filter(settled_at__gte=start, settled_at__lt=start + timedelta(seconds=seconds))
    grouped = ended.order_by().values(
        group_account=Coalesce("account_id", Value(0)),
        group_key=Coalesce("key_id", Value(0)),
        group_model=F("model"),
        group_error=_error(),
    )
    sums: dict[str, Any] = {f"sum_{name}": Coalesce(Sum(name), Value(0)) for name in (*TOKENS, "cost_micros")}
    sums["unpriced"] = Count("pk", filter=Q(cost_micros=None))
    columns: dict[str, Any] = {name: Count("pk", filter=_within(place)) for place, (name, _) in enumerate(BOUNDS)}
    rows = cast(Iterable[Mapping[str, Any]], grouped.annotate(turns=Count("pk"), **sums, **columns))
    for row in rows:
        yield {
            **{name: row[f"group_{name.removesuffix('_id')}"] for name in GROUP},
            "turns": row["turns"],
            **{name: row[f"sum_{name}"] for name in TOKENS},
            "cost_micros": row["sum_cost_micros"],
            "unpriced": row["unpriced"],
            **{name: row[name] for name, _ in BOUNDS},
        }


def _error() -> Case:
    """Why a turn ended badly, as one word; empty when it did not, which a client that left is no case of."""
    why = Coalesce(NullIf("cause", Value("")), NullIf("code", Value("")), F("outcome"))
    return Case(When(outcome__in=ERRORS, then=why), default=Value(""), output_field=models.CharField())


def _within(place: int) -> Q:
    """Turns whose first event falls into the latency column at `place`."""
    above = BOUNDS[place - 1][1] if place else -1
    bound = BOUNDS[place][1]
    return Q(started_ms__gt=above) & (Q() if bound is None else Q(started_ms__lte=bound))


def _of_sums(seconds: int, start: datetime) -> Iterable[Mapping[str, Any]]:
    """The minutes of a longer span, added up."""
    minutes = Rollup.objects.filter(seconds=MINUTE, start__gte=start, start__lt=start + timedelta(seconds=seconds))
    summed = minutes.order_by().values(*GROUP).annotate(**{f"sum_{name}": Sum(name) for name in SUMS})
    for row in summed:
        yield {**{name: row[name] for name in GROUP}, **{name: row[f"sum_{name}"] for name in SUMS}}


def _forget(now: datetime) -> None:
    """Delete old sums. Minutes go by whole hours: an hour that is counted again needs all of them."""
    for seconds, kept in KEPT.items():
        for sums in (Rollup, Total):
            sums.objects.filter(seconds=seconds, start__lt=floor(now - kept, HOUR)).delete()
