"""Pictures drawn on the server. They carry classes for colours, so that light and dark are the style sheet's affair.

No text and no style attribute is in them: text is HTML around them, and the content policy forbids the other. A picture
that stretches keeps its lines' width by `vector-effect`, which the style sheet sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import floor, log10, pi
from sys import float_info

from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

# Width and height of the coordinates of a chart; what it is stretched to is the page's affair.
WIDTH, HEIGHT = 600, 120
SPARK_HEIGHT = 40
RING_RADIUS = 42.0
# Degrees between two segments of a ring.
RING_GAP = 1.2


def sparkline(values: Sequence[float], label: str) -> SafeString:
    """A small area under a line."""
    points = _points(values, max(values, default=0.0), SPARK_HEIGHT)
    return format_html(
        '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<path class="spark-area" d="{} L{} {} L0 {} Z" /><path class="spark-line" d="{}" /></svg>',
        WIDTH, SPARK_HEIGHT, label, _path(points), WIDTH, SPARK_HEIGHT, SPARK_HEIGHT, _path(points),
    )  # fmt: skip


def bars(columns: Sequence[Sequence[float]], classes: Sequence[str], titles: Sequence[str], label: str) -> SafeString:
    """Stacked bars: each column holds a value for each of `classes`, and is described by its title."""
    highest = ceiling(max((sum(column) for column in columns), default=0.0))
    step = WIDTH / max(1, len(columns))
    drawn = "".join(
        _group(place * step, step, _stack(place * step, step, column, classes, highest), title)
        for place, (column, title) in enumerate(zip(columns, titles, strict=True))
    )
    return _chart(drawn, label)


def lines(
    series: Sequence[Sequence[float | None]], classes: Sequence[str], titles: Sequence[str], label: str
) -> SafeString:
    """Lines over a common scale, interrupted where there is no value."""
    highest = ceiling(max((value for values in series for value in values if value is not None), default=0.0))
    drawn = format_html_join(
        "", '<path class="line {0}" d="{1}" /><path class="line dots {0}" d="{2}" />',
        ((name, *_broken_path(values, highest)) for name, values in zip(classes, series, strict=True)),
    )  # fmt: skip
    step = WIDTH / max(1, len(titles))
    hits = "".join(_group(place * step, step, "", title) for place, title in enumerate(titles))
    return _chart(drawn + hits, label)


def ceiling(highest: float) -> float:
    """The top of an axis for values up to `highest`: a round number that has a round half, 1 for none."""
    size: float = 10 ** floor(log10(highest)) if highest >= float_info.min else 1
    rounds = (1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10) if size >= 10 else (1, 2, 4, 6, 8, 10)
    return next((size * step for step in rounds if size * step >= highest), size * 10)


def ring(shares: Sequence[tuple[float, str]], label: str) -> SafeString:
    """Equal parts of a ring, each filled as far as its share (0 to 1) says, in its class."""
    around = 2 * pi * RING_RADIUS
    part = around / max(1, len(shares))
    gap = around * RING_GAP / 360 if len(shares) > 1 else 0.0
    segments = format_html_join(
        "", "{}",
        (
            (format_html("{}{}", _arc("ring-track", place * part, part - gap, around),
                         _arc(name, place * part, (part - gap) * min(1.0, max(0.0, share)), around)),)
            for place, (share, name) in enumerate(shares)
        ),
    )  # fmt: skip
    empty = _arc("ring-track", 0.0, around, around)
    return format_html(
        '<svg class="ring" viewBox="0 0 100 100" role="img" aria-label="{}">'
        '<g transform="rotate(-90 50 50)">{}</g></svg>',
        label, segments or empty,
    )  # fmt: skip


def meter(share: float | None, name: str, label: str) -> SafeString:
    """A bar that is filled from the left as far as `share` (0 to 1) says; None for an empty one."""
    filled = (
        ""
        if share is None
        else format_html(
            '<rect class="{}" width="{}%" height="100%" rx="3" />', name, round(100 * min(1.0, max(0.0, share)), 1)
        )
    )
    return format_html(
        '<svg class="meter" role="img" aria-label="{}">'
        '<rect class="meter-track" width="100%" height="100%" rx="3" />{}</svg>',
        label, filled,
    )  # fmt: skip


def stretch(begin: int, end: int, whole: int, *, bad: bool) -> SafeString:
    """Where in `whole` something began and ended, for a row of a timeline."""
    left = round(100 * begin / whole, 2)
    # However short it was, it is seen.
    width = min(100 - left, max(0.4, round(100 * (end - begin) / whole, 2)))
    return format_html(
        '<svg class="gantt" aria-hidden="true"><rect class="gantt-track" width="100%" height="100%" rx="4" />'
        '<rect class="{}" x="{}%" width="{}%" height="100%" rx="3" /></svg>',
        "gantt-bad" if bad else "gantt-bar", min(left, 99.6), round(max(width, 0.4), 2),
    )  # fmt: skip


def _chart(drawn: str, label: str) -> SafeString:
    grid = "".join(f'<path class="grid" d="M0 {y} H{WIDTH}" />' for y in (0, HEIGHT / 2, HEIGHT))
    # Both parts are made here, of numbers, class names and escaped titles.
    parts = mark_safe(grid + drawn)  # noqa: S308
    return format_html(
        '<svg class="chart" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>',
        WIDTH, HEIGHT, label, parts,
    )  # fmt: skip


def _group(x: float, width: float, drawn: str, title: str) -> str:
    """A column with what the pointer meets anywhere in it. Plain text, since a chart has hundreds of them."""
    hit = f'<rect class="hit" x="{x:.2f}" width="{width:.2f}" height="{HEIGHT}" />'
    return f"<g>{hit}{drawn}<title>{escape(title)}</title></g>"


def _stack(x: float, step: float, column: Sequence[float], classes: Sequence[str], highest: float) -> str:
    return "".join(
        f'<rect class="{name}" x="{left:.2f}" y="{top:.2f}" width="{width:.2f}" height="{height:.2f}" />'
        for name, left, top, width, height in _boxes(x, step, column, classes, highest)
    )


def _boxes(
    x: float, step: float, column: Sequence[float], classes: Sequence[str], highest: float
) -> Iterator[tuple[str, float, float, float, float]]:
    top = float(HEIGHT)
    for value, name in zip(column, classes, strict=True):
        if value:
            # What is there is seen, however little it is.
            height = max(1.5, HEIGHT * value / highest)
            top -= height
            yield name, x + step * 0.12, top, step * 0.76, height


def _arc(name: str, offset: float, length: float, around: float) -> SafeString:
    return format_html(
        '<circle class="{}" cx="50" cy="50" r="{}" stroke-dasharray="{} {}" stroke-dashoffset="{}" />',
        name, RING_RADIUS, round(length, 2), round(around - length, 2), round(-offset, 2),
    )  # fmt: skip


def _points(values: Sequence[float], highest: float, height: float) -> list[tuple[float, float]]:
    step = WIDTH / max(1, len(values) - 1)
    return [(place * step, height - (height - 3) * value / (highest or 1.0)) for place, value in enumerate(values)]


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _broken_path(values: Sequence[float | None], highest: float) -> tuple[str, str]:
    """The line, and apart from it the dots for values with none beside them, of which a line would show nothing."""
    step = WIDTH / max(1, len(values))
    line: list[str] = []
    dots: list[str] = []
    for place, value in enumerate(values):
        if value is None:
            continue
        above = place > 0 and values[place - 1] is not None
        x, y = (place + 0.5) * step, HEIGHT - HEIGHT * value / highest
        line.append(f"{'L' if above else 'M'}{x:.1f} {y:.1f}")
        if not above and values[place + 1 : place + 2] in ([], [None]):
            dots.append(f"M{x:.1f} {y:.1f} h.01")
    return " ".join(line) or "M0 0", " ".join(dots) or "M0 0"
