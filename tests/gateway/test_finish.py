"""Work that comes to its end whatever happens to who asked for it."""

from __future__ import annotations

import asyncio

import pytest

from gateway.finish import finish_first
from tests.support.virtual_loop import in_virtual_time


@in_virtual_time
async def test_the_result_comes_through() -> None:
    async def work() -> str:
        await asyncio.sleep(1)
        return "done"

    assert await finish_first(work()) == "done"


@in_virtual_time
async def test_what_the_work_raises_comes_through() -> None:
    async def work() -> None:
        await asyncio.sleep(1)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await finish_first(work())


@in_virtual_time
@pytest.mark.parametrize("strikes", [1, 3])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancellation_waits_for_the_end_of_the_work_and_is_then_raised(strikes: int, fails: bool) -> None:
    ended: list[float] = []
    loop = asyncio.get_running_loop()

    async def work() -> None:
        await asyncio.sleep(10)
        ended.append(loop.time())
        if fails:
            raise ValueError("nobody will see it")

    task = asyncio.ensure_future(finish_first(work()))
    for _ in range(strikes):
        await asyncio.sleep(1)
        task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert ended == [10.0]


@in_virtual_time
async def test_a_cancellation_of_the_work_itself_is_one() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await finish_first(work())
