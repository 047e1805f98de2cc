"""The ledger in virtual time, over a store whose commits and failures the test decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from gateway.errors import LedgerUnavailable
from gateway.turns.ledger import GATHER, MAX_UNWRITTEN, RETRY_DELAY, Ledger, LedgerError
from gateway.turns.record import TurnRecord
from tests.support.inprocess import world
from tests.support.records import HELLO, record, sent, settled
from tests.support.virtual_loop import in_virtual_time


class Commits:
    """A store that takes `seconds` for each commit, and fails while it is `broken`."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds
        self.broken: Exception | None = None
        self.batches: list[list[TurnRecord]] = []
        self.rows: dict[TurnRecord, str] = {}

    async def write(self, records: Sequence[TurnRecord]) -> None:
        await asyncio.sleep(self.seconds)
        if self.broken is not None:
            raise self.broken
        self.batches.append(list(records))
        self.rows.update({each: each.outcome or "" for each in records})


@asynccontextmanager
async def running(commits: Commits) -> AsyncIterator[Ledger]:
    """A ledger whose `run` is a task, stopped in good order."""
    ledger = Ledger(commits.write)
    task = asyncio.ensure_future(ledger.run())
    try:
        yield ledger
    finally:
        ledger.stop()
        await task


def opened() -> TurnRecord:
    return sent(record())


def closed() -> TurnRecord:
    return settled(opened())


@in_virtual_time
async def test_open_returns_when_its_commit_is_done_and_not_before() -> None:
    commits = Commits(seconds=3.0)
    async with running(commits) as ledger:
        turn = opened()
        opening = asyncio.ensure_future(ledger.open(turn))
        await asyncio.sleep(2.9)
        assert not opening.done()
        assert ledger.unwritten == 1
        await opening
        assert asyncio.get_running_loop().time() == pytest.approx(3.0)
        assert commits.rows == {turn: ""}
        assert ledger.unwritten == 0


@in_virtual_time
async def test_turns_that_begin_while_a_commit_runs_share_the_next_one() -> None:
    commits = Commits()
    async with running(commits) as ledger:
        first = asyncio.ensure_future(ledger.open(opened()))
        await asyncio.sleep(0.5)
        await asyncio.gather(first, *(ledger.open(opened()) for _ in range(50)))
        assert [len(batch) for batch in commits.batches] == [1, 50]


@in_virtual_time
async def test_a_turn_opened_and_closed_in_one_batch_is_one_row() -> None:
    commits = Commits()
    async with running(commits) as ledger:
        busy = asyncio.ensure_future(ledger.open(opened()))
        await asyncio.sleep(0.5)
        turn = opened()
        opening = asyncio.ensure_future(ledger.open(turn))
        await asyncio.sleep(0)
        opening.cancel()
        ledger.close(settled(turn))
        await asyncio.wait({busy, opening})
    assert commits.batches[1:] == [[turn]]
    assert commits.rows[turn] == "completed"


@in_virtual_time
async def test_a_turn_whose_opening_was_cancelled_is_written_and_can_be_closed() -> None:
    commits = Commits()
    async with running(commits) as ledger:
        turn = opened()
        opening = asyncio.ensure_future(ledger.open(turn))
        await asyncio.sleep(0.5)
        opening.cancel()
        await asyncio.wait({opening})
        ledger.close(settled(turn))
    assert commits.rows == {turn: "completed"}


@in_virtual_time
async def test_a_failed_commit_refuses_every_turn_that_waited_for_it() -> None:
    commits = Commits()
    commits.broken = LedgerError("the disk is full")
    async with running(commits) as ledger:
        refused = await asyncio.gather(*(ledger.open(opened()) for _ in range(3)), return_exceptions=True)
        commits.broken = None
        assert [type(error) for error in refused] == [LedgerUnavailable] * 3
        assert {error.retry_after for error in refused if isinstance(error, LedgerUnavailable)} == {2}
        await ledger.open(opened())
    assert len(commits.rows) == 1, "a turn that was refused was written as open"


@in_virtual_time
async def test_closes_wait_for_a_broken_store_and_are_written_when_it_is_back() -> None:
    commits = Commits(seconds=0.1)
    commits.broken = LedgerError("the disk is full")
    async with running(commits) as ledger:
        turns = [closed() for _ in range(3)]
        for turn in turns:
            ledger.close(turn)
            await asyncio.sleep(5 * RETRY_DELAY)
        assert ledger.unwritten == 3
        commits.broken = None
        await asyncio.sleep(2 * RETRY_DELAY)
        assert commits.batches == [turns]
        assert ledger.unwritten == 0


@in_virtual_time
async def test_a_broken_store_is_asked_once_in_a_while_and_not_in_a_busy_loop() -> None:
    commits = Commits(seconds=0.1)
    commits.broken = LedgerError("the disk is full")
    with capture_logs() as logs:
        async with running(commits) as ledger:
            ledger.close(closed())
            await asyncio.sleep(10 * RETRY_DELAY)
    assert 8 <= sum(event["event"] == "ledger_write_failed" for event in logs) <= 11


@in_virtual_time
async def test_turns_that_end_within_a_moment_share_a_commit() -> None:
    commits = Commits(seconds=0.01)
    async with running(commits) as ledger:
        for _ in range(10):
            ledger.close(closed())
            await asyncio.sleep(GATHER / 20)
        await asyncio.sleep(GATHER)
        assert [len(batch) for batch in commits.batches] == [10]


@in_virtual_time
async def test_turns_that_ended_go_along_with_the_next_one_that_begins() -> None:
    commits = Commits(seconds=0.01)
    async with running(commits) as ledger:
        for _ in range(3):
            ledger.close(closed())
        await ledger.open(opened())
        assert [len(batch) for batch in commits.batches] == [4]


@in_virtual_time
async def test_a_store_that_fails_in_an_unforeseen_way_does_not_end_the_ledger() -> None:
    commits = Commits(seconds=0.1)
    commits.broken = OverflowError("too large to store")
    async with running(commits) as ledger:
        with pytest.raises(LedgerUnavailable):
            await asyncio.wait_for(ledger.open(opened()), 60)
        commits.broken = None
        await asyncio.wait_for(ledger.open(opened()), 60)


@in_virtual_time
async def test_stop_writes_what_is_left() -> None:
    commits = Commits(seconds=2.0)
    async with running(commits) as ledger:
        opening = asyncio.ensure_future(ledger.open(opened()))
        await asyncio.sleep(1.0)
        turns = [closed() for _ in range(5)]
        for turn in turns:
            ledger.close(turn)
    assert opening.done()
    assert commits.batches[1:] == [turns]


@in_virtual_time
async def test_stop_does_not_wait_for_a_store_that_stays_broken() -> None:
    commits = Commits()
    commits.broken = LedgerError("the disk is full")
    async with running(commits) as ledger:
        ledger.close(closed())
    assert asyncio.get_running_loop().time() <= 2 * (commits.seconds + RETRY_DELAY)


@in_virtual_time
async def test_an_idle_ledger_writes_nothing() -> None:
    commits = Commits()
    async with running(commits):
        await asyncio.sleep(3600)
    assert not commits.batches


@in_virtual_time
async def test_more_unwritten_turns_than_may_be_kept_cost_the_oldest_and_say_so() -> None:
    commits = Commits()
    ledger = Ledger(commits.write)
    oldest = closed()
    with capture_logs() as logs:
        ledger.close(oldest)
        same = closed()
        for _ in range(MAX_UNWRITTEN):
            ledger.close(same)
    assert ledger.unwritten == MAX_UNWRITTEN
    assert logs == [{"event": "ledger_overflow", "log_level": "error", "lost_turn": str(oldest.request.id)}]


async def test_a_gateway_that_cannot_write_its_ledger_sends_nothing_and_recovers() -> None:
    async with world() as w:
        w.store.broken = True
        answer = await w.post(dict(HELLO))
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "ledger_unavailable"
        assert int(answer.headers["retry-after"]) >= 1
        assert not w.upstream.observed.requests
        w.store.broken = False
        assert (await w.post(dict(HELLO))).status_code == 200
        outcomes = [turn["outcome"] for turn in await w.settled()]
    assert sorted(outcomes) == ["completed", "refused"]


async def test_a_turn_that_ends_while_the_store_is_broken_is_written_later() -> None:
    async with world(faults=("slow:0.05",)) as w:
        posting = asyncio.ensure_future(w.post(dict(HELLO)))
        await w.upstream.until(lambda observed: observed.running == 1)
        w.store.broken = True
        assert (await posting).status_code == 200
        assert [turn["outcome"] for turn in w.turns()] == [""]
        w.store.broken = False
        assert [turn["outcome"] for turn in await w.settled()] == ["completed"]
