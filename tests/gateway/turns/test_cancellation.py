"""A turn struck at every one of its awaits is settled once and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Mapping, Sequence

import pytest

from gateway.conf import Tunables
from gateway.errors import ClientLost, GatewayError
from gateway.keys import KeySnapshot
from gateway.protocol.body import parse_body
from gateway.protocol.events import Event
from gateway.turns.answers import Answer
from gateway.turns.dispatch import Turn
from gateway.turns.request import Downstream, Route, TurnRequest
from tests.support.inprocess import World, world
from tests.support.steps import Steps

BODY = {
    "model": "gpt-5.5",
    "stream": True,
    "store": False,
    "input": [{"type": "message", "role": "user", "content": []}],
}
MOST = 60


class Listener:
    """A client that keeps what it gets; every send yields to the loop once, as a real one may."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.answers: list[Answer] = []

    def upstream_headers(self, headers: Mapping[str, str]) -> None: ...

    async def deliver(self, events: Sequence[Event]) -> None:
        await asyncio.sleep(0)
        self.events.extend(events)

    def pass_on(self, events: Sequence[Event]) -> bool:
        return False

    async def refuse(self, answer: Answer) -> None:
        await asyncio.sleep(0)
        self.answers.append(answer)

    def tick(self, now: float) -> float:
        return 60.0

    async def end_silence(self) -> None: ...


async def strike(w: World, at: int, how: Callable[[Turn, asyncio.Task], None]) -> tuple[int, Listener]:
    """Run one turn and strike it at its suspension number `at`; how often it suspended, and what its client got."""
    gate = w.runtime.gate
    raw = json.dumps(BODY).encode()
    listener = Listener()
    steps: list[Steps] = []

    async def run() -> None:
        task = asyncio.current_task()
        key = KeySnapshot(1, "tests", "", "")
        with gate.permits.ask(key, len(raw)) as permit:
            request = TurnRequest(
                key, Route.CODEX, Downstream.SSE, [], parse_body(raw), gate.clock.wall(), uuid.uuid4()
            )
            turn = Turn(gate.engine, request, listener, permit)
            steps.append(Steps(turn.run(), at, lambda: how(turn, task)))
            await steps[0]

    task = asyncio.ensure_future(run())
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()
    return steps[0].suspensions, listener


def leave(turn: Turn, task: asyncio.Task) -> None:
    turn.abort(ClientLost("The client has left."))


def end_process(turn: Turn, task: asyncio.Task) -> None:
    task.cancel()


def fail(turn: Turn, task: asyncio.Task) -> None:
    turn.abort(GatewayError("a defect"))


def leave_twice(turn: Turn, task: asyncio.Task) -> None:
    turn.abort(ClientLost("The client has left."))
    task.cancel()


async def assert_nothing_is_left(w: World, turns: int) -> None:
    ledger = await w.settled()
    assert len(ledger) == turns
    assert all(turn["outcome"] for turn in ledger)
    writes = [turn for batch in w.store.writes for turn, outcome in batch if outcome]
    assert len(writes) == len(set(writes)) == turns, "a turn was closed twice or never"
    assert w.runtime.permits.held == w.runtime.permits.waiting == 0
    assert w.runtime.streams.active(1) == 0
    assert not w.runtime.engine.running
    async with asyncio.timeout(5):
        while w.upstream.observed.to_json()["running"]:
            await asyncio.sleep(0.01)
    assert all(lane.state in ("open", "closed") for lane in w.runtime.pool), w.runtime.pool


@pytest.mark.parametrize("transport", ["websocket", "http"])
@pytest.mark.parametrize("how", [leave, end_process, fail, leave_twice])
async def test_a_turn_struck_at_any_await_is_settled_once(transport, how):
    async with world(transport=transport, tunables=Tunables(close_timeout=0.5)) as w:
        before = len(asyncio.all_tasks())
        at, suspensions = 1, MOST
        while at <= suspensions and at < MOST:
            suspensions, _ = await strike(w, at, how)
            at += 1
        assert at > 5, "the turn has too few awaits for this to prove anything"
        await assert_nothing_is_left(w, at - 1)
        await w.runtime.pool.close()
        await asyncio.sleep(0.05)
        assert len(asyncio.all_tasks()) <= before


@pytest.mark.parametrize(
    "fault", ["reset", "usage_limit", "silent_after_created", "response_failed:server_error", "no_terminal"]
)
@pytest.mark.parametrize("transport", ["websocket", "http"])
async def test_a_failing_turn_struck_at_any_await_is_settled_once(transport, fault):
    tunables = Tunables(close_timeout=0.5, stream_idle_timeout=0.05, response_start_timeout=0.5)
    async with world("ada", "bo", transport=transport, tunables=tunables, faults=(fault,)) as w:
        at, suspensions = 1, MOST
        while at <= suspensions and at < MOST:
            suspensions, _ = await strike(w, at, leave)
            at += 1
        await assert_nothing_is_left(w, at - 1)
