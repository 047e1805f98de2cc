"""The one store that all replicas of a world share: the twin in memory, with latency, failures and a witness."""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any, TypeVar

from accounts.credentials import Credentials
from accounts.registry import StateChange
from accounts.states import State
from gateway.metering.usage import NO_TALLY, Tally, windows_at
from gateway.storage import StoreError
from gateway.turns.ledger import Committed, LedgerError
from gateway.turns.record import TurnRecord
from gateway.turns.turn import Outcome
from tests.sim.loop import Process
from tests.support.memory import MemoryStore

COMMIT = (0.0005, 0.01)
# Responses that the ledger still knows the account or the owner of.
STORED = 2000
# Sessions beyond which those are dropped that nobody has used for so many seconds, as by a purge.
MOST_SESSIONS = 1000
SESSION_KEPT = 900.0
# Counts of usage beyond which those of windows that are over are dropped.
MOST_COUNTS = 500

T = TypeVar("T")
Row = dict[str, Any]
Written = Callable[[Row, Row | None, TurnRecord | None], None]


class Witness:
    """Told of every change as it is committed; `tests.sim.world` is one."""

    def written(self, row: Row, before: Row | None, record: TurnRecord | None) -> None: ...

    def state_changed(self, change: StateChange) -> None: ...


class SimStore(MemoryStore):
    """A process that dies while it waits for a commit may or may not have made it."""

    def __init__(self, random: Random, wall: Callable[[], float], witness: Witness, lease_ttl: float) -> None:
        super().__init__(now=lambda: datetime.fromtimestamp(wall(), UTC), lease_ttl=lease_ttl)
        # The most seconds that a commit takes besides, now that the database is slow.
        self.slow = 0.0
        self._random = random
        self._witness = witness
        self._responses: OrderedDict[tuple[int, str], int] = OrderedDict()
        self._anchored: OrderedDict[tuple[int, str], Row] = OrderedDict()
        self._purges_at = 0.0

    async def _wait(self) -> None:
        slower = self._random.uniform(0, self.slow) if self.slow else 0.0
        await asyncio.sleep(self._random.uniform(*COMMIT) + slower)

    async def _commit(self) -> None:
        await self._wait()
        if self.broken:
            raise StoreError("the store is broken on purpose")

    async def write_turns(
        self, replica: uuid.UUID, records: Sequence[TurnRecord], tally: Tally = NO_TALLY
    ) -> Committed:
        try:
            await self._commit()
        except StoreError as error:
            raise LedgerError(str(error)) from error
        before = {record.request.id: self.turns.get(record.request.id) for record in records}
        committed = await super().write_turns(replica, records, tally)
        self.writes.clear()
        self._tidy(self.now().timestamp())
        for record in records:
            row = self.turns[record.request.id]
            self._note_response(row)
            self._witness.written(row, before[record.request.id], record)
        await self._wait()
        return committed

    def _tidy(self, now: float) -> None:
        if len(self.usage) > MOST_COUNTS:
            windows = windows_at(now)
            self.usage = {key: counts for key, counts in self.usage.items() if key[1][1] in windows}
        if len(self.sessions) > MOST_SESSIONS and now >= self._purges_at:
            self._purges_at = now + SESSION_KEPT / 10
            kept = now - SESSION_KEPT
            self.sessions = {key: stored for key, stored in self.sessions.items() if stored[0].used_at > kept}

    def _note_response(self, row: Row) -> None:
        """What is asked of rows that are long closed, since those are not kept here."""
        if row["upstream"] == "http" and row["outcome"] == Outcome.COMPLETED:
            _keep(self._responses, (row["key_id"], row["response_id"]), row["account_id"])
        if row["anchored"]:
            _keep(self._anchored, (row["key_id"], row["response_id"]), row)

    async def find_response(self, client: int, response_id: str) -> int | None:
        await self._commit()
        return self._responses.get((client, response_id))

    async def owner_of_response(self, client: int, response_id: str) -> uuid.UUID | None:
        await self._commit()
        made = self._anchored.get((client, response_id))
        return made["replica"] if made is not None and self._stands(made) else None

    def _interrupt(self, has_ended: Callable[[uuid.UUID], bool]) -> int:
        closed = 0
        for key, turn in list(self.turns.items()):
            if not turn["outcome"] and has_ended(turn["replica"]):
                self.turns[key] = turn | {"outcome": Outcome.INTERRUPTED, "cause": "process_died"}
                self._witness.written(self.turns[key], turn, None)
                closed += 1
        return closed

    async def persist_state(self, change: StateChange) -> bool:
        await self._commit()
        done = await super().persist_state(change)
        if done:
            self._witness.state_changed(change)
        return done

    def give_credentials(self, account: int, credentials: Credentials) -> None:
        """A new token for the account; one that needed a login has it."""
        known = self.accounts[account]
        state = State.ACTIVE if known.state is State.NEEDS_LOGIN else known.state
        self.accounts[account] = replace(known, credentials=credentials, state=state, revision=known.revision + 1)

    def set_state(self, account: int, state: State) -> None:
        """The operator's word."""
        known = self.accounts[account]
        self.accounts[account] = replace(known, state=state, state_until=None, revision=known.revision + 1)

    def forget(self, turn: uuid.UUID) -> None:
        """Drop a row that is closed, as pruning does."""
        self.turns.pop(turn, None)


def _keep(known: OrderedDict[tuple[int, str], T], key: tuple[int, str], value: T) -> None:
    known[key] = value
    if len(known) > STORED:
        known.popitem(last=False)


def in_process() -> str:
    """The name of the process that runs now."""
    process = Process.current.get()
    return "" if process is None else process.name
