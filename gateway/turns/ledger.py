"""The ledger: every turn is written down before it is sent, and again when it is settled.

Turns that begin at the same time share one commit: while one batch is being written, the next one gathers. Turns
that end go along with the next ones that begin, or a moment later on their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import structlog

from gateway.continuity.leases import Written
from gateway.errors import LedgerUnavailable
from gateway.metering.usage import Elsewhere
from gateway.turns.record import TurnRecord

log = structlog.get_logger("gateway.ledger")

# Settled turns that could not be written are kept for another try, up to so many.
MAX_UNWRITTEN = 20_000
RETRY_DELAY = 1.0
# Nobody waits for a settled turn to be written, so those of this many seconds share a commit, if only with each other.
GATHER = 0.25


class LedgerError(Exception):
    """The store could not write a batch; nothing of the batch was written."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What came of a commit: its claims and anchors, and what other processes have counted for the keys it watches."""

    leases: Written = field(default_factory=Written)
    elsewhere: Elsewhere = field(default_factory=Elsewhere)


Write = Callable[[Sequence[TurnRecord]], Awaitable[None]]


class Ledger:
    """Writes records through `write`, which inserts or replaces rows and raises `LedgerError`.

    Run `run` as a task for as long as turns may come; `stop` it to write what is left.
    """

    def __init__(self, write: Write, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._write = write
        self._sleep = sleep
        self._opening: list[tuple[TurnRecord, asyncio.Future[None]]] = []
        self._closing: list[TurnRecord] = []
        self._work = asyncio.Event()
        self._closing_soon: asyncio.TimerHandle | None = None
        self._stopping = False
        self._writing = 0

    @property
    def unwritten(self) -> int:
        """Records that no commit has covered yet."""
        return len(self._opening) + len(self._closing) + self._writing

    async def open(self, record: TurnRecord) -> None:
        """Write `record` before its turn is sent; raises `LedgerUnavailable`, and then nothing may be sent."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._opening.append((record, future))
        self._work.set()
        try:
            await future
        except LedgerError as error:
            raise LedgerUnavailable(
                "The turn could not be written to the ledger, so it was not sent; check the gateway's database.",
                retry_after=2,
            ) from error

    def close(self, record: TurnRecord) -> None:
        """Write `record` as it is now, off the turn's path; a turn that was never opened gets its row here."""
        if len(self._closing) >= MAX_UNWRITTEN:
            log.error("ledger_overflow", lost_turn=str(self._closing.pop(0).request.id))
        self._closing.append(record)
        if self._closing_soon is None:
            self._closing_soon = asyncio.get_running_loop().call_later(GATHER, self._work.set)

    async def run(self) -> None:
        """Write batches until `stop`; returns when everything is written, or cannot be."""
        while not (self._stopping and not self._opening and not self._closing):
            await self._work.wait()
            self._work.clear()
            if self._closing_soon is not None:
                self._closing_soon.cancel()
                self._closing_soon = None
            if not await self._write_batch():
                if self._stopping:
                    return
                await self._sleep(RETRY_DELAY)
                self._work.set()

    def stop(self) -> None:
        """Let `run` finish what is there."""
        self._stopping = True
        self._work.set()

    async def _write_batch(self) -> bool:
        opening, self._opening = self._opening, []
        closing, self._closing = self._closing, []
        # A turn may be opened and closed in one batch; it is one row.
        records = list(dict.fromkeys([record for record, _ in opening] + closing))
        if not records:
            return True
        failure: LedgerError | None = None
        self._writing = len(records)
        try:
            await self._write(records)
        except LedgerError as error:
            log.error("ledger_write_failed", turns=len(records), error=str(error))
            failure = error
        except Exception as error:
            # A defect of ours or of the store: were it to end this task, every turn to come would wait forever.
            log.exception("ledger_defect", turns=len(records))
            failure = LedgerError(f"{type(error).__name__} while writing the ledger")
        finally:
            self._writing = 0
        if failure is not None:
            self._closing = closing + self._closing
        else:
            for record in records:
                record.sessions.clear()
        for _, future in opening:
            if future.done():
                continue
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)
        return failure is None
