"""What a client reads when no account can take its turn: the pool in one line, and when the first one is back."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gateway.clock import Clock
from gateway.conf import Tunables
from tests.support.inprocess import World, world
from tests.support.records import HELLO

# 14:05 of a day; the pool is asked at noon.
BACK = datetime(2026, 3, 2, 14, 5, tzinfo=UTC).timestamp()
NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC).timestamp()
# Nobody listens on this port.
DEAD = "socks5://127.0.0.1:1"
ROUTES = [("/backend-api/codex/responses", 503), ("/v1/responses", 502)]


class NoWaiting(random.Random):
    """Says the lower bound, so that another attempt begins at once."""

    def uniform(self, a: float, b: float) -> float:
        return a


def at_noon() -> Clock:
    return Clock(wall=lambda: NOON, random=NoWaiting())


async def limit(w: World, number: int) -> None:
    w.runtime.registry.mark_limited(number, BACK, "usage limit reached", by="tests")
    await w.runtime.registry.refresh()


def open_circuit(w: World, number: int) -> None:
    circuits = w.runtime.engine.health.circuits
    for _ in range(5):
        circuits.admit(number, NOON)
        circuits.failed(number, "upstream_lost", NOON, NOON, {number})


async def kill_proxy(w: World, number: int) -> None:
    before = w.store.accounts[number]
    w.store.accounts[number] = replace(before, proxy=DEAD, revision=before.revision + 1)
    await w.runtime.registry.refresh()


async def test_a_turn_that_waited_in_vain_reads_what_is_with_each_account() -> None:
    tunables = Tunables(admission_wait=0.2)
    slow = {**HELLO, "model": "gpt-5.5;events=50;interval=0.05"}
    async with world("ada", "bo", "cy", transport="http", tunables=tunables, streams=1, clock=at_noon()) as w:
        await limit(w, 1)
        open_circuit(w, 2)
        running = asyncio.ensure_future(w.post(slow))
        while not w.upstream.observed.requests:
            await asyncio.sleep(0.01)
        answer = await w.post(HELLO)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (503, "account_streams_busy")
        assert "(3 accounts: 1 limited until 14:05, 1 circuit open, 1 full)" in error["message"]
        assert int(answer.headers["retry-after"]) >= 1
        await running


@pytest.mark.parametrize(("path", "status"), ROUTES)
@pytest.mark.parametrize("transport", ["http", "websocket"])
@pytest.mark.parametrize("circuit", ["closed", "open"])
async def test_the_last_resort_behind_a_dead_proxy_is_named_with_the_pool_and_the_earliest_reset(
    circuit: str, transport: str, path: str, status: int
) -> None:
    async with world("ada", "bo", transport=transport, clock=at_noon()) as w:
        await limit(w, 1)
        await kill_proxy(w, 2)
        if circuit == "open":
            open_circuit(w, 2)
        answer = await w.post(HELLO, path)
        assert answer.status_code == status
        error = answer.json()["error"]
        assert "(2 accounts: 1 limited until 14:05, 1 excluded: upstream_" in error["message"]
        assert error["message"].endswith("; nothing was sent.")
        assert error["resets_at"] == BACK
        assert not w.upstream.observed.requests


async def test_on_a_websocket_the_same_is_said() -> None:
    async with world("ada", "bo", clock=at_noon()) as w:
        await limit(w, 1)
        await kill_proxy(w, 2)
        socket = await w.websocket()
        await socket.send(json.dumps({"type": "response.create", **HELLO}))
        frame = json.loads(await socket.recv())
        assert (frame["status"], frame["error"]["resets_at"]) == (503, BACK)
        assert "2 accounts: 1 limited until 14:05, 1 excluded: upstream_" in frame["error"]["message"]


async def test_an_account_that_cannot_be_reached_promises_no_reset() -> None:
    async with world(transport="http", clock=at_noon()) as w:
        await kill_proxy(w, 1)
        error = (await w.post(HELLO)).json()["error"]
        assert "(1 account: 1 excluded: upstream_connect_failed)" in error["message"]
        assert "resets_at" not in error


async def test_a_conversation_whose_account_cannot_be_reached_says_that_no_other_may_take_it() -> None:
    bound = {**HELLO, "conversation": "conv_1"}
    async with world("ada", "bo", transport="http", clock=at_noon()) as w:
        assert "Hello from ada" in (await w.post(bound)).text
        await kill_proxy(w, 1)
        error = (await w.post(bound)).json()["error"]
        assert "(2 accounts: 1 not the owner, 1 excluded: upstream_connect_failed)" in error["message"]
