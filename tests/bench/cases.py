"""What is measured: how answers are paced, how many clients there are at once, how large their requests are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.bench.answers import Shape
from tests.bench.requests import KIB

MIB = 1024 * KIB
# Seconds within which all clients start.
LONGEST_START = 2.0
PACED = Shape(events=100, interval=10)
UNPACED = Shape(events=100, interval=0)
FLOOD = Shape(events=2000, interval=0)


@dataclass(frozen=True, slots=True)
class Case:
    """`at_once` clients, each with `turns` turns one after the other, with bodies of `size` bytes."""

    shape: Shape
    at_once: int
    size: int
    turns: int

    @property
    def name(self) -> str:
        size = f"{self.size // MIB} MiB" if self.size >= MIB else f"{self.size // KIB} KiB"
        pace = f"{self.shape.interval} ms apart" if self.shape.interval else "unpaced"
        return f"{self.shape.events} events {pace}, {self.at_once} at a time, bodies of {size}"

    @property
    def stagger(self) -> float:
        """Seconds between the starts of two clients, so that paced answers do not march in step."""
        return min(self.shape.interval * 1.3 / 1000, LONGEST_START / self.at_once)


@dataclass(frozen=True, slots=True)
class Plan:
    """All cases, how often each is run on each system, and how many idle sockets are opened to weigh them."""

    cases: Sequence[Case]
    runs: int
    idle_sockets: int


QUICK = Plan(
    cases=(Case(PACED, 16, 40 * KIB, 3), Case(UNPACED, 16, 40 * KIB, 6), Case(FLOOD, 16, 40 * KIB, 1)),
    runs=3,
    idle_sockets=100,
)

# The middle of each row, then one thing changed at a time.
FULL = Plan(
    cases=(
        Case(PACED, 16, 40 * KIB, 3),
        Case(PACED, 1, 40 * KIB, 4),
        Case(PACED, 128, 40 * KIB, 2),
        Case(PACED, 16, 4 * KIB, 2),
        Case(PACED, 16, 4 * MIB, 2),
        Case(UNPACED, 16, 40 * KIB, 20),
        Case(UNPACED, 1, 40 * KIB, 100),
        Case(UNPACED, 128, 40 * KIB, 4),
        Case(UNPACED, 16, 4 * KIB, 20),
        Case(UNPACED, 16, 4 * MIB, 3),
        Case(FLOOD, 16, 40 * KIB, 2),
    ),
    runs=5,
    idle_sockets=200,
)
