"""A report as text for people, or as JSON for machines."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence

from tests.bench.results import CaseResult, Figures, Line, Report, Spread
from tests.bench.systems import Role

KIB = 1024
MIB = 1024 * KIB
# More than this of another core's time, used by other programs, makes a run worth repeating.
NOISY = 0.1
# A ratio to less than this many milliseconds would say nothing.
TOO_SMALL = 0.05
NOTHING = "-"


def as_text(report: Report) -> str:
    """Every case as a table. Columns that a case cannot tell are left out of it."""
    parts = [f"{report.processor}, Python {report.python}; medians of {report.runs} runs (least to most)"]
    parts += ["\n".join(_case(result)) for result in report.cases]
    if report.weights:
        parts.append("\n".join(_weights(report)))
    return "\n\n".join(parts)


def as_json(report: Report) -> str:
    """The same figures, unrounded, one object per case and system."""
    cases = [
        {
            "case": result.case.name,
            "events": result.case.shape.events,
            "interval_ms": result.case.shape.interval,
            "at_once": result.case.at_once,
            "body_bytes": result.case.size,
            "systems": [
                {
                    "protocol": line.system.protocol,
                    "name": line.system.name,
                    "role": line.system.role,
                    "failure": line.failure or None,
                    "figures": None if line.figures is None else dataclasses.asdict(line.figures),
                }
                for line in result.lines
            ],
        }
        for result in report.cases
    ]
    weights = [
        {"name": system.name, "role": system.role, **dataclasses.asdict(weight)} for system, weight in report.weights
    ]
    told = {"processor": report.processor, "python": report.python, "runs": report.runs}
    return json.dumps({**told, "cases": cases, "memory": weights}, indent=2)


def _case(result: CaseResult) -> Iterator[str]:
    yield result.case.name
    paced = bool(result.case.shape.interval)
    measured = ["first event p50", "p99 ms", "travel p50", "p99 ms"] if paced else ["events/s"]
    columns = ["", "CPU ms a turn", *measured, "upstream", "driver", "others"]
    rows = [
        [line.system.label, *(_figures(result, line, line.figures, paced=paced) if line.figures else [line.failure])]
        for line in result.lines
    ]
    yield from _aligned([columns, *rows])


def _figures(result: CaseResult, line: Line, figures: Figures, *, paced: bool) -> Iterator[str]:
    bare = result.beside(line, Role.BARE) if line.system.role in (Role.GATEWAY, Role.PEER) else None
    yield _spread(figures.cpu_per_turn, bare.cpu_per_turn if bare else None)
    if paced:
        yield from _latencies(figures, bare, result.beside(line, Role.DIRECT))
    else:
        yield _spread(figures.events_per_second, bare.events_per_second if bare else None, digits=0)
    yield from (f"{share:.0%}" for share in (figures.upstream_share, figures.driver_share))
    yield f"{figures.others_share:.0%}{' !' if figures.others_share > NOISY else ''}"


def _latencies(figures: Figures, bare: Figures | None, direct: Figures | None) -> Iterator[str]:
    """First events as what is added to the upstream alone, whose own line has its own time in brackets."""
    if direct is None or direct is figures:
        yield from (f"[{figures.first_p50:.2f}]", f"[{figures.first_p99:.2f}]")
    else:
        base = bare.first_p50 - direct.first_p50 if bare else None
        added = figures.first_p50 - direct.first_p50
        yield from (f"{added:+.2f}{_ratio(added, base)}", f"{figures.first_p99 - direct.first_p99:+.2f}")
    yield f"{figures.travel_p50:.2f}{_ratio(figures.travel_p50, bare.travel_p50 if bare else None)}"
    yield f"{figures.travel_p99:.2f}"


def _weights(report: Report) -> Iterator[str]:
    yield "memory, and CPU at rest"
    columns = ["", "MiB at rest", "KiB an idle socket, fresh", "after a turn", "CPU at rest"]
    bare = next((weight for system, weight in report.weights if system.role is Role.BARE), None)
    rows = []
    for system, weight in report.weights:
        base = bare if bare is not weight else None
        rows.append(
            [
                system.label,
                f"{weight.rest / MIB:.1f}{_ratio(weight.rest, base.rest if base else None)}",
                f"{weight.fresh_socket / KIB:.1f}{_ratio(weight.fresh_socket, base.fresh_socket if base else None)}",
                f"{weight.used_socket / KIB:.1f}{_ratio(weight.used_socket, base.used_socket if base else None)}",
                f"{weight.rest_cpu:.1%}",
            ]
        )
    yield from _aligned([columns, *rows])


def _spread(spread: Spread | None, base: Spread | None, digits: int = 1) -> str:
    if spread is None:
        return NOTHING
    told = f"{spread.median:.{digits}f} ({spread.least:.{digits}f}-{spread.most:.{digits}f})"
    return told + _ratio(spread.median, base.median if base else None)


def _ratio(value: float, base: float | None) -> str:
    """How many times the bare relay's figure `value` is, where there is one to speak of."""
    return f" x{value / base:.2f}" if base is not None and base > TOO_SMALL else ""


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows as lines, each column as wide as it must be; a row that is short ends in a sentence, as long as it is."""
    whole = [row for row in rows if len(row) == len(rows[0])]
    widths = [max(map(len, column)) for column in zip(*whole, strict=True)]
    widths[0] = max(len(row[0]) for row in rows)
    for row in rows:
        first, *others = row
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)] if row in whole else others
        yield "  ".join([first.ljust(widths[0]), *cells]).rstrip()
