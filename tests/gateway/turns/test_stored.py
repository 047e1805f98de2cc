"""Calls about stored responses: where they go, and how many at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from accounts.states import Kind
from gateway.errors import Overloaded, ResponseNotFound
from gateway.turns.stored import MOST_AT_ONCE, StoredCall, StoredCalls
from tests.gateway.consumers.asgi import V1, Edge, body, edge


@pytest.fixture
async def made() -> AsyncIterator[Edge]:
    async with edge(kind=Kind.OPENAI) as made:
        yield made


def call(response_id: str) -> StoredCall:
    return StoredCall(1, response_id, "GET", "", "", [])


async def test_a_response_that_is_only_now_written_down_is_found(made: Edge):
    """Another process made it a moment ago, and its row is not there when it is first looked for."""
    response_id = (await made.answer(V1, body(stream=False, store=True))).json()["id"]
    asked: list[str] = []

    async def find(client: int, sought: str) -> int | None:
        asked.append(sought)
        return 1 if len(asked) > 1 else None

    runtime = made.runtime
    async with edge(kind=Kind.OPENAI) as other:
        ties = other.runtime.gate.engine.router.ties
        calls = StoredCalls(runtime.registry, ties, runtime.http, runtime.gate.clock, find)
        assert (await calls.make(call(response_id))).status == 200
    assert asked == [response_id] * 2


async def test_so_many_calls_run_at_once_and_no_more(made: Edge):
    waiting = asyncio.Event()

    async def find(client: int, sought: str) -> int | None:
        await waiting.wait()
        return None

    runtime = made.runtime
    calls = StoredCalls(runtime.registry, runtime.gate.engine.router.ties, runtime.http, runtime.gate.clock, find)
    running = [asyncio.ensure_future(calls.make(call(f"resp_{number}"))) for number in range(MOST_AT_ONCE)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as refused:
        await calls.make(call("resp_more"))
    assert refused.value.code == "too_many_calls"
    waiting.set()
    results = await asyncio.gather(*running, return_exceptions=True)
    assert all(isinstance(result, ResponseNotFound) for result in results)
    with pytest.raises(ResponseNotFound):
        await calls.make(call("resp_more"))
