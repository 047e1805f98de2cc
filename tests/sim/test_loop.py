"""The loop of a simulated world: its time, its order, and processes that stall or die."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from tests.sim.loop import Process, SimLoop
from tests.support.virtual_loop import Stuck


def run(work: Coroutine[Any, Any, Any], seed: int = 1) -> Any:
    loop = SimLoop(Random(seed))
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


def test_time_passes_only_when_everybody_waits():
    async def wait() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    began = time.monotonic()
    assert run(wait()) == pytest.approx(3600, abs=0.01)
    assert time.monotonic() - began < 1


def test_a_world_in_which_nothing_can_happen_any_more_is_an_error():
    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    loop = SimLoop(Random(1))
    task = loop.create_task(wait())
    with pytest.raises(Stuck):
        loop.run_until_complete(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()


async def order_of_ten() -> list[int]:
    seen: list[int] = []

    async def note(number: int) -> None:
        await asyncio.sleep(0)
        seen.append(number)

    await asyncio.gather(*map(note, range(10)))
    return seen


def test_the_seed_decides_the_order_of_tasks():
    first, again, other = run(order_of_ten(), 1), run(order_of_ten(), 1), run(order_of_ten(), 2)
    assert first == again
    assert sorted(first) == list(range(10))
    assert first != other


def test_plain_callbacks_keep_their_order():
    async def call() -> list[int]:
        seen: list[int] = []
        for number in range(20):
            asyncio.get_running_loop().call_soon(seen.append, number)
        await asyncio.sleep(0.1)
        return seen

    assert run(call()) == list(range(20))


def test_a_killed_process_runs_no_finally():
    async def live() -> tuple[list[str], list[str]]:
        seen: list[str] = []
        process = Process("r1")

        async def work() -> None:
            try:
                await asyncio.sleep(10)
            finally:
                seen.append("cleaned up")

        task = process.spawn(work())
        await asyncio.sleep(1)
        process.kill()
        await asyncio.sleep(100)
        before = list(seen)
        process.alive = True
        process.go_on()
        await task
        return before, seen

    assert run(live()) == ([], ["cleaned up"])


def test_a_stalled_process_goes_on_where_it_was_and_its_timers_are_late():
    async def live() -> float:
        process = Process("r1")
        loop = asyncio.get_running_loop()

        async def work() -> float:
            await asyncio.sleep(1)
            return loop.time()

        task = process.spawn(work())
        await asyncio.sleep(0.5)
        process.stall()
        await asyncio.sleep(30)
        assert not task.done()
        process.go_on()
        return await task

    assert run(live()) == pytest.approx(30.5, abs=0.01)
