"""Many runs become one line: medians, how far apart the runs were, and percentiles over all turns and events."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tests.bench.cases import Case
from tests.bench.measure import Sample
from tests.bench.memory import Weight
from tests.bench.systems import Role, System


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some runs, and the least and the most of them."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Raises `statistics.StatisticsError` for no values at all."""
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Figures:
    """What all runs of one case on one system came to. Times are milliseconds, shares are parts of one core."""

    cpu_per_turn: Spread | None
    events_per_second: Spread
    first_p50: float
    first_p99: float
    travel_p50: float
    travel_p99: float
    upstream_share: float
    driver_share: float
    others_share: float
    turns: int

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Figures:
        """Raises `statistics.StatisticsError` when there is no sample."""
        costs = [sample.cpu * 1000 / sample.turns for sample in samples if sample.cpu is not None]
        firsts = sorted(first for sample in samples for first in sample.firsts)
        travels = sorted(travel for sample in samples for travel in sample.travels)
        return cls(
            cpu_per_turn=Spread.of(costs) if costs else None,
            events_per_second=Spread.of([sample.events / sample.seconds for sample in samples]),
            first_p50=percentile(firsts, 50) / 1e6,
            first_p99=percentile(firsts, 99) / 1e6,
            travel_p50=percentile(travels, 50) / 1e6,
            travel_p99=percentile(travels, 99) / 1e6,
            upstream_share=median(sample.upstream / sample.metered for sample in samples),
            driver_share=median(sample.driver / sample.metered for sample in samples),
            others_share=median(sample.others / sample.metered for sample in samples),
            turns=sum(sample.turns for sample in samples),
        )


@dataclass(frozen=True, slots=True)
class Line:
    """One system in one case: its figures, or why it has none."""

    system: System
    figures: Figures | None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case on all systems, in the order in which they took turns."""

    case: Case
    lines: Sequence[Line]

    def beside(self, line: Line, role: Role) -> Figures | None:
        """The figures of the system with `role` that speaks the same protocol as `line`'s."""
        for other in self.lines:
            if other.system.role is role and other.system.protocol is line.system.protocol:
                return other.figures
        return None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one call of the benchmark has measured."""

    processor: str
    python: str
    runs: int
    cases: Sequence[CaseResult]
    weights: Sequence[tuple[System, Weight]]


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest of the `ordered` values that at least `percent` of them do not exceed (nearest rank)."""
    if not ordered:
        raise ValueError("There is no percentile of no values.")
    return ordered[max(1, math.ceil(len(ordered) * percent / 100)) - 1]
