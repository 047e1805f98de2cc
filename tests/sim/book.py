"""What a world knows of every turn from both of its ends: the client's, the ledger's and the upstream's."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

from gateway.simulator.observed import RequestRecord

MARK = re.compile(rb'"mark": ?"([^"]+)"')


def mark_of(body: bytes) -> str | None:
    """The client's own name of a request, which every body of a simulated client carries in its metadata."""
    found = MARK.search(body)
    return None if found is None else found[1].decode()


def previous_of(raw: bytes) -> str | None:
    """The `previous_response_id` of a body as it was sent."""
    _, found, rest = raw.partition(b'"previous_response_id":')
    text = rest.lstrip()
    return text[1 : text.index(b'"', 1)].decode() if found and text.startswith(b'"') else None


@dataclass(slots=True)
class Arrival:
    """One request as the upstream got it. `connection` is the network's number, or None once that is gone."""

    record: RequestRecord
    account: str
    replica: str
    connection: int
    previous: str | None
    at: float
    refused: bool = False


@dataclass(eq=False, slots=True)
class Asked:
    """One request of a client. `ends` are what the client took for its end, which must be one."""

    mark: str
    client: str
    replica: str
    transport: str
    at: float
    previous: str | None = None
    ends: list[str] = field(default_factory=list)
    ended_at: float | None = None
    left: bool = False
    arrivals: list[Arrival] = field(default_factory=list)
    row: dict[str, object] | None = None
    row_id: str = ""
    settled_at: float | None = None

    @property
    def outcome(self) -> str:
        return "" if self.row is None else str(self.row["outcome"])

    @property
    def over(self) -> bool:
        """Nothing of it is left anywhere."""
        written = self.row is None or bool(self.outcome)
        return bool(self.ends) and written and not any(arrival.record.running for arrival in self.arrivals)


class Book:
    """The turns that are not over (`open`), and those that were over a short while ago."""

    # Seconds that a turn is kept when it is over, for what may still come of it.
    KEEP = 120.0

    def __init__(self) -> None:
        self.open: dict[str, Asked] = {}
        self.by_row: dict[str, Asked] = {}
        self.count = 0
        self._known: dict[str, Asked] = {}
        self._leaving: deque[tuple[float, Asked]] = deque()
        self._arrivals: dict[int, tuple[Asked, Arrival]] = {}

    def ask(self, asked: Asked) -> Asked:
        self.count += 1
        self.open[asked.mark] = self._known[asked.mark] = asked
        return asked

    def find(self, mark: str | None) -> Asked | None:
        return None if mark is None else self._known.get(mark)

    def arrive(self, asked: Asked, arrival: Arrival) -> None:
        asked.arrivals.append(arrival)
        self._arrivals[arrival.record.number] = (asked, arrival)

    def leave(self, record: RequestRecord) -> tuple[Asked, Arrival] | None:
        """Whose arrival has ended at the upstream."""
        return self._arrivals.pop(record.number, None)

    def tidy(self, now: float) -> None:
        """Put aside what is over, and forget what has been so for a while."""
        for mark in [mark for mark, asked in self.open.items() if asked.over]:
            self._leaving.append((now, self.open.pop(mark)))
        while self._leaving and now - self._leaving[0][0] > self.KEEP:
            _, asked = self._leaving.popleft()
            self._known.pop(asked.mark, None)
            self.by_row.pop(asked.row_id, None)
