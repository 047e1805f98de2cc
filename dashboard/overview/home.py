"""The overview: figures, capacity, accounts, charts and the newest turns, in fragments that can be replaced alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from django.template.defaultfilters import pluralize
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from dashboard import svg
from dashboard.overview.pool import LONG, SHORT, Card, Pool, load_pool
from dashboard.overview.series import SPANS, Span, Step, load, percentile, total
from dashboard.words import clock, compact, dollars, percent
from gateway.models import Turn

NEWEST = 10
# So many kinds of errors have a colour; the rest share one.
KINDS = 4
REST = "other"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number with what it means beside it."""

    title: str
    value: str
    note: str
    spark: SafeString


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture, what its colours stand for, and the ends of its axes. `empty` says why there is nothing to see."""

    title: str
    picture: SafeString
    legend: Sequence[tuple[str, str]]
    top: str
    middle: str
    times: Sequence[str]
    empty: str = ""


@dataclass(frozen=True, slots=True)
class Ring:
    """What is left of one usage window, of all accounts that tell it."""

    title: str
    left: str
    picture: SafeString
    parts: Sequence[tuple[Card, str]]
    silent: int


class Home:
    """The overview at `now`. What is not asked for is not read."""

    def __init__(self, span: Span, now: datetime) -> None:
        self.span = span
        self.now = now

    @cached_property
    def pool(self) -> Pool:
        return load_pool(self.now)

    @cached_property
    def steps(self) -> list[Step]:
        return load(self.span, self.now)

    @cached_property
    def all(self) -> Step:
        return total(self.steps)

    @cached_property
    def newest(self) -> list[Turn]:
        """The turns that came last, running ones among them."""
        return list(Turn.objects.order_by("-received_at").defer("attempts")[:NEWEST])

    @cached_property
    def figures(self) -> Sequence[Figure]:
        return figures(self.steps, self.all, self.span)

    @cached_property
    def rings(self) -> Sequence[Ring]:
        return [ring(title, place, self.pool.cards) for place, title in enumerate((SHORT, LONG))]

    @cached_property
    def charts(self) -> Sequence[Chart]:
        return charts(self.steps, self.all, self.span)

    @property
    def spans(self) -> Sequence[Span]:
        return list(SPANS.values())


# Name of a fragment, which is the id of its place in the page, and its template.
FRAGMENTS: Mapping[str, str] = {
    name: f"dashboard/home/{name}.html" for name in ("pool", "figures", "rings", "accounts", "charts", "newest")
}
# These change with every event of the pool; the others with every new sum.
QUICK = ("pool", "accounts", "newest")


def fragments(home: Home, names: Sequence[str] = tuple(FRAGMENTS)) -> dict[str, str]:
    """The HTML of the named parts of the page."""
    return {name: render_to_string(FRAGMENTS[name], {"home": home}) for name in names}


def figures(steps: Sequence[Step], summed: Step, span: Span) -> Sequence[Figure]:
    """The four cards on top."""
    return (
        Figure("Turns", compact(summed.turns), f"in the {span.title}", _spark(steps, lambda step: step.turns, "Turns")),
        Figure("Tokens", compact(summed.tokens), _cached(summed), _spark(steps, lambda step: step.tokens, "Tokens")),
        Figure("Cost", *_cost(summed), _spark(steps, lambda step: step.cost_micros, "Cost")),
        Figure("Errors", *_errors(summed), _spark(steps, lambda step: step.failed, "Errors")),
    )


def _spark(steps: Sequence[Step], value: Callable[[Step], float], title: str) -> SafeString:
    return svg.sparkline([value(step) for step in steps], f"{title} over time")


def _cached(summed: Step) -> str:
    if not summed.input_tokens:
        return "none counted yet"
    return f"{percent(summed.cached_tokens / summed.input_tokens)} of the input was cached"


def _cost(summed: Step) -> tuple[str, str]:
    if summed.unpriced == summed.turns:
        return "–", "no prices for these models" if summed.turns else "nothing to pay for yet"  # noqa: RUF001
    note = (
        f"{compact(summed.unpriced)} turn{pluralize(summed.unpriced)} had no price"
        if summed.unpriced
        else "by your price list"
    )
    return dollars(summed.cost_micros), note


def _errors(summed: Step) -> tuple[str, str]:
    if not summed.failed:
        return "0 %", "no turn failed" if summed.turns else "nothing to fail yet"
    (cause, count), *_ = summed.errors.most_common(1)
    return percent(summed.failed / summed.turns), f"mostly {cause.replace('_', ' ')} ({compact(count)})"


def ring(title: str, place: int, cards: Sequence[Card]) -> Ring:
    """What is left of the window at `place` of each account's two."""
    told = [(card, card.usages[place].left) for card in cards]
    known = [(card, left) for card, left in told if left is not None]
    mean = sum(left for _, left in known) / len(known) if known else None
    heading = "5-hour capacity" if title == SHORT else "Weekly capacity"
    label = f"{heading} left: " + (", ".join(f"{card.name} {percent(left)}" for card, left in known) or "unknown")
    return Ring(
        title=heading,
        left="–" if mean is None else percent(mean),  # noqa: RUF001
        picture=svg.ring([(left, f"ring-part s{card.colour}") for card, left in known], label),
        parts=[(card, percent(left)) for card, left in known],
        silent=len(cards) - len(known),
    )


def charts(steps: Sequence[Step], summed: Step, span: Span) -> Sequence[Chart]:
    """Turns, tokens, latency and errors over the span."""
    return (_turns(steps, span), _tokens(steps, span), _latency(steps, span), _causes(steps, summed, span))


def _turns(steps: Sequence[Step], span: Span) -> Chart:
    columns = [(step.turns - step.failed, step.failed) for step in steps]
    titles = [f"{_when(step, span)}: {step.turns} turns, {step.failed} failed" for step in steps]
    legend = (("c-good", "ended well"), ("c-bad", "failed"))
    return _bars("Turns", columns, legend, titles, steps, span)


def _tokens(steps: Sequence[Step], span: Span) -> Chart:
    columns = [
        (step.cached_tokens, max(0, step.input_tokens - step.cached_tokens), step.output_tokens) for step in steps
    ]
    titles = [
        f"{_when(step, span)}: {compact(cached)} cached, {compact(fresh)} other input, {compact(output)} output"
        for step, (cached, fresh, output) in zip(steps, columns, strict=True)
    ]
    legend = (("c-1", "cached input"), ("c-2", "other input"), ("c-3", "output"))
    return _bars("Tokens", columns, legend, titles, steps, span)


def _latency(steps: Sequence[Step], span: Span) -> Chart:
    half = [percentile(step.latency, 0.5) for step in steps]
    most = [percentile(step.latency, 0.95) for step in steps]
    titles = [
        f"{_when(step, span)}: half within {_ms(one)}, 95 % within {_ms(other)}"
        for step, one, other in zip(steps, half, most, strict=True)
    ]
    title = "Time to the first event"
    highest = max((value for value in most if value is not None), default=0.0)
    top = svg.ceiling(highest)
    return Chart(
        title=title,
        picture=svg.lines([most, half], ["c-3", "c-1"], titles, f"{title}, {span.title}"),
        legend=(("c-1", "half of the turns"), ("c-3", "95 %")),
        top=_ms(top),
        middle=_ms(top / 2),
        times=_times(steps, span),
        empty="" if highest else "No turn had an answer in this time.",
    )


def _causes(steps: Sequence[Step], summed: Step, span: Span) -> Chart:
    kinds = [kind for kind, _ in summed.errors.most_common(KINDS)]
    columns, titles = [], []
    for step in steps:
        named = [step.errors[kind] for kind in kinds]
        columns.append((*named, step.failed - sum(named)))
        told = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in step.errors.most_common())
        titles.append(f"{_when(step, span)}: {told or 'no errors'}")
    legend = [(f"e-{place}", kind.replace("_", " ")) for place, kind in enumerate(kinds)]
    rest = summed.failed - sum(summed.errors[kind] for kind in kinds)
    chart = _bars("Errors", columns, [*legend, ("e-rest", REST)], titles, steps, span)
    shown = [*legend, ("e-rest", REST)] if rest else legend
    return Chart(
        chart.title, chart.picture, shown, chart.top, chart.middle, chart.times,
        "" if summed.failed else f"No errors in the {span.title}.",
    )  # fmt: skip


def _bars(
    title: str,
    columns: Sequence[Sequence[float]],
    legend: Sequence[tuple[str, str]],
    titles: Sequence[str],
    steps: Sequence[Step],
    span: Span,
) -> Chart:
    highest = max(sum(column) for column in columns)
    top = svg.ceiling(highest)
    return Chart(
        title=title,
        picture=svg.bars(columns, [name for name, _ in legend], titles, f"{title}, {span.title}"),
        legend=legend,
        top=compact(top),
        middle=compact(top / 2) if top >= 2 else "",
        times=_times(steps, span),
        empty="" if highest else f"Nothing in the {span.title}.",
    )


def _when(step: Step, span: Span) -> str:
    return clock(step.start, span.seconds)


def _times(steps: Sequence[Step], span: Span) -> Sequence[str]:
    return [_when(steps[len(steps) * quarter // 4], span) for quarter in range(4)] + ["now"]


def _ms(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "–"  # noqa: RUF001
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"
