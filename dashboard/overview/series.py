"""The sums of the ledger as series for cards and charts. Reads sums alone, never the turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet, Sum

from gateway.watch.models import Rollup, Total
from gateway.watch.rollup import BOUNDS, HOUR, MINUTE, QUARTER, floor


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time until now, in `count` steps of so many seconds. `sums` is how long the sums are that are read.

    A chart is a few hundred pixels wide and drawn on the server: more than a hundred steps nobody can tell apart.
    """

    name: str
    title: str
    seconds: int
    count: int
    sums: int


SPANS = {
    span.name: span
    for span in (
        Span("1h", "last hour", MINUTE, 60, MINUTE),
        Span("24h", "last 24 hours", QUARTER, 96, QUARTER),
        Span("7d", "last 7 days", 2 * HOUR, 84, HOUR),
    )
}
FIRST_SPAN, DEFAULT_SPAN = SPANS["1h"], SPANS["24h"]


# What is read of a row of sums.
READ = (
    "turns", "input_tokens", "cached_tokens", "output_tokens", "cost_micros", "unpriced", *(name for name, _ in BOUNDS),
)  # fmt: skip


@dataclass(slots=True)
class Step:
    """What ended in one step of a span. `latency` counts turns by `rollup.BOUNDS`, `errors` by what went wrong."""

    start: datetime
    turns: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_micros: int = 0
    unpriced: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    latency: list[int] = field(default_factory=lambda: [0] * len(BOUNDS))

    @property
    def failed(self) -> int:
        return self.errors.total()

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def add(self, error: str, sums: Sequence[int]) -> None:
        """Count sums in, which are in the order of `READ`; `error` is empty where they are of turns that ended well."""
        turns, given, cached, output, cost, unpriced, *latency = sums
        self.turns += turns
        self.input_tokens += given
        self.cached_tokens += cached
        self.output_tokens += output
        self.cost_micros += cost
        self.unpriced += unpriced
        if error:
            self.errors[error] += turns
        self.latency = [one + other for one, other in zip(self.latency, latency, strict=True)]


def usual_span(now: datetime) -> Span:
    """What is shown unless somebody asks for another span: of a ledger that has just begun its first hour alone."""
    begun = now - timedelta(seconds=FIRST_SPAN.seconds * FIRST_SPAN.count)
    return DEFAULT_SPAN if Total.objects.filter(seconds=HOUR, start__lt=floor(begun, HOUR)).exists() else FIRST_SPAN


def load(span: Span, now: datetime, **having: object) -> list[Step]:
    """Every step of the span, the oldest first; `having` are fields of `Rollup` to choose by."""
    newest = floor(now, span.seconds)
    steps = {
        start: Step(start)
        for start in (newest - timedelta(seconds=span.seconds * back) for back in reversed(range(span.count)))
    }
    sums_of: QuerySet[Any] = Rollup.objects.filter(**having) if having else Total.objects.all()
    rows = sums_of.filter(seconds=span.sums, start__gte=min(steps))
    # Of the whole gateway there is one row for each start and error, of which no sum has to be made.
    names = [f"sum_{name}" for name in READ] if having else READ
    if having:
        rows = rows.values("start", "error").annotate(**{f"sum_{name}": Sum(name) for name in READ})
    for start, error, *sums in rows.values_list("start", "error", *names):
        step = steps.get(floor(start, span.seconds))
        if step is not None:
            step.add(error, sums)
    return list(steps.values())


def total(steps: Sequence[Step]) -> Step:
    """All steps in one; it begins with the first."""
    summed = Step(steps[0].start)
    for step in steps:
        for name in ("turns", "input_tokens", "cached_tokens", "output_tokens", "cost_micros", "unpriced"):
            setattr(summed, name, getattr(summed, name) + getattr(step, name))
        summed.errors.update(step.errors)
        summed.latency = [one + other for one, other in zip(summed.latency, step.latency, strict=True)]
    return summed


def percentile(latency: Sequence[int], share: float) -> float | None:
    """Milliseconds within which that `share` of the turns had their first event; None when no turn had one.

    Exact to the column it falls into, and spread evenly within it.
    """
    wanted = share * sum(latency)
    if not wanted:
        return None
    below, lower = 0, 0
    for (_, bound), count in zip(BOUNDS, latency, strict=True):
        upper = lower * 2 if bound is None else bound
        if count and below + count >= wanted:
            return lower + (upper - lower) * (wanted - below) / count
        below, lower = below + count, upper
    return float(lower)
