"""The ledger as its file says, read beside the gateway that writes it."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

from gateway.turns.record import Attempt


@dataclass(frozen=True)
class TurnRow:
    """A row of the ledger; a phase that was never reached is None."""

    replica: str
    received_at: str
    admitted_ms: int | None
    sent_ms: int | None
    started_ms: int | None
    streaming_ms: int | None
    settled_ms: int | None
    account_name: str
    route: str
    downstream: str
    upstream: str
    response_id: str
    outcome: str
    cause: str
    code: str
    status: int | None
    attempts: str
    request_bytes: int
    response_bytes: int
    events: int
    generated: bool

    @property
    def tries(self) -> list[Attempt]:
        """Which accounts were chosen, and what came of each choice."""
        return list(json.loads(self.attempts))

    @property
    def admitted(self) -> float:
        """Unix seconds, to the millisecond; raises `AssertionError` for a turn that was never admitted."""
        return self._moment(self.admitted_ms)

    @property
    def settled(self) -> float:
        """Unix seconds, to the millisecond; raises `AssertionError` for a turn that still runs."""
        return self._moment(self.settled_ms)

    def _moment(self, elapsed_ms: int | None) -> float:
        assert elapsed_ms is not None, self
        received = datetime.fromisoformat(self.received_at).replace(tzinfo=UTC)
        return received.timestamp() + elapsed_ms / 1000


COLUMNS = [field.name for field in fields(TurnRow)]


class LedgerFile:
    """The turns of an SQLite installation; every call reads the file anew."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def mark(self) -> int:
        """Where the ledger ends now; give it to `turns` to see what came after."""
        return max((number for number, _ in self._rows(0)), default=0)

    def turns(self, since: int = 0) -> list[TurnRow]:
        """The turns after the mark `since`, in the order in which they were first written."""
        return [turn for _, turn in self._rows(since)]

    def first(self, since: int, condition: Callable[[TurnRow], object], limit: float = 10.0) -> TurnRow:
        """Wait for a turn after `since` that meets `condition`; raises `AssertionError` when none does in time."""
        deadline = time.monotonic() + limit
        while not (found := [turn for turn in self.turns(since) if condition(turn)]):
            assert time.monotonic() < deadline, f"no such turn within {limit:g} s: {self.turns(since)}"
            time.sleep(0.01)
        return found[0]

    def settled(self, since: int, count: int = 1, limit: float = 10.0) -> list[TurnRow]:
        """Wait until `count` turns after `since` are settled; raises `AssertionError` when it does not come to that."""
        deadline = time.monotonic() + limit
        while len(turns := self.turns(since)) < count or not all(turn.outcome for turn in turns):
            assert time.monotonic() < deadline, f"not {count} settled turns within {limit:g} s: {turns}"
            time.sleep(0.01)
        assert len(turns) == count, f"{len(turns)} turns instead of {count}: {turns}"
        return turns

    def _rows(self, since: int) -> list[tuple[int, TurnRow]]:
        # A row keeps its number when it is written again.
        statement = f"SELECT rowid, {', '.join(COLUMNS)} FROM gateway_turn WHERE rowid > ? ORDER BY rowid"
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=5)) as connection:
            return [(number, TurnRow(*columns)) for number, *columns in connection.execute(statement, [since])]
