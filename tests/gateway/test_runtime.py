"""One gateway process: started and stopped in order, kept up every second, and honest about whether it is ready."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import httpx
import pytest
from structlog.testing import capture_logs

from accounts.states import State
from gateway.conf import Tunables
from gateway.continuity.rules import SessionKey, SessionKind, Strength
from gateway.continuity.sessions import Session
from gateway.errors import ConnectFailed
from gateway.keys import KeySnapshot, new_key
from gateway.runtime import Network, Runtime
from gateway.upstream.connection import LaneConnection
from gateway.upstream.exchange import Target
from gateway.upstream.http import HttpTransport
from tests.support.frames import converse, sse_events, types
from tests.support.inprocess import account, world
from tests.support.memory import MemoryStore
from tests.support.network import ScriptedRefresher
from tests.support.records import HELLO, record, sent
from tests.support.sockets import RawClient
from tests.support.virtual_loop import in_virtual_time, loop_clock


async def nobody_there(target: Target) -> LaneConnection:
    raise ConnectFailed("There is no network.")


def made(store: MemoryStore, tunables: Tunables | None = None) -> Runtime:
    """A runtime without a network, in the time of the running loop."""
    tunables, clock = tunables or Tunables(), loop_clock()
    network = Network(nobody_there, HttpTransport(tunables, clock), ScriptedRefresher())
    return Runtime(tunables, store, clock, network)


@asynccontextmanager
async def running(store: MemoryStore) -> AsyncIterator[Runtime]:
    runtime = made(store)
    await runtime.start()
    try:
        yield runtime
    finally:
        await runtime.drain()
        await runtime.stop()


def furnished() -> MemoryStore:
    key = new_key()
    store = MemoryStore(keys=[KeySnapshot(1, "tests", key.lookup, key.digest)])
    store.accounts[1] = account(1, "ada", "https://example.invalid/v1")
    return store


async def problems(runtime: Runtime) -> dict[str, str]:
    """The conditions of readiness that are not met, and what is said of them."""
    return {check.name: check.problem for check in await runtime.readiness.checks() if not check.ok}


@in_virtual_time
async def test_a_started_process_is_registered_and_knows_keys_and_accounts() -> None:
    store = furnished()
    async with running(store) as runtime:
        assert store.beats[runtime.id] is not None
        assert [each.name for each in runtime.registry.accounts] == ["ada"]
        assert runtime.keys.find("pm_x_y") is None
        assert not await problems(runtime)
    assert store.beats[runtime.id] is None


@in_virtual_time
async def test_a_start_closes_what_a_dead_process_left_open_and_says_how_much() -> None:
    store = furnished()
    for _ in range(3):
        await store.write_turns(uuid.uuid4(), [sent(record())])
    with capture_logs() as logs:
        async with running(store):
            assert {turn["outcome"] for turn in store.turns.values()} == {"interrupted"}
    assert [event["turns"] for event in logs if event["event"] == "interrupted_turns_closed"] == [3]


@in_virtual_time
async def test_turns_of_another_process_that_dies_meanwhile_are_closed_too() -> None:
    store, other = furnished(), uuid.uuid4()
    await store.register(other)
    async with running(store):
        await store.write_turns(other, [sent(record())])
        await asyncio.sleep(60)
        assert [turn["outcome"] for turn in store.turns.values()] == [""]
        beat = store.beats[other]
        assert beat is not None
        store.beats[other] = beat - timedelta(minutes=1)
        await asyncio.sleep(11)
        assert [turn["outcome"] for turn in store.turns.values()] == ["interrupted"]


@in_virtual_time
async def test_keys_and_accounts_that_change_are_known_a_second_later() -> None:
    store = furnished()
    async with running(store) as runtime:
        key = new_key()
        store.keys.append(KeySnapshot(2, "new", key.lookup, key.digest))
        store.accounts[2] = account(2, "bo", "https://example.invalid/v1")
        await asyncio.sleep(2.5)
        assert runtime.keys.find(key.text) == store.keys[1]
        assert [each.name for each in runtime.registry.accounts] == ["ada", "bo"]
        store.keys[1] = replace(store.keys[1], enabled=False)
        await asyncio.sleep(1.5)
        assert runtime.keys.find(key.text) is None


@in_virtual_time
async def test_a_store_that_fails_for_a_while_costs_no_key_and_no_task() -> None:
    store = furnished()
    with capture_logs() as logs:
        async with running(store) as runtime:
            store.broken = True
            await asyncio.sleep(25)
            assert "database" in await problems(runtime)
            assert runtime.registry.accounts
            store.broken = False
            store.accounts[1] = replace(store.accounts[1], name="ada-2")
            await asyncio.sleep(3)
            assert not await problems(runtime)
            assert runtime.registry.accounts[0].name == "ada-2"
    assert any(event["event"] == "upkeep_failed" for event in logs)


@in_virtual_time
async def test_what_others_did_while_the_store_was_out_of_reach_is_learned_when_it_is_back() -> None:
    store = furnished()
    conversation = SessionKey(1, SessionKind.THREAD, "digest")
    async with running(store) as runtime:
        store.broken = True
        used_at = loop_clock().wall()
        store.sessions[conversation] = (Session(conversation, 1, Strength.HARD, used_at), uuid.uuid4())
        await asyncio.sleep(25)
        store.broken = False
        await asyncio.sleep(3)
        found = runtime.sessions.find(conversation, loop_clock().wall())
        assert found is not None
        assert found.account_id == 1


@in_virtual_time
async def test_every_condition_that_is_not_met_is_named() -> None:
    store = furnished()
    async with running(store) as runtime:
        store.accounts[1] = replace(store.accounts[1], state=State.PAUSED)
        await asyncio.sleep(2.5)
        assert await problems(runtime) == {"accounts": "no account is usable"}
        store.broken = True
        assert (await problems(runtime)).keys() == {"accounts", "database", "migrations"}
        store.broken = False
        await runtime.drain()
        assert (await problems(runtime)).keys() == {"accounts", "running"}


@in_virtual_time
async def test_a_process_stops_in_order_also_when_its_store_is_gone() -> None:
    store = furnished()
    runtime = made(store)
    await runtime.start()
    runtime.registry.mark_needs_login(1, "refused")
    runtime.ledger.close(record())
    store.broken = True
    await runtime.drain()
    await asyncio.wait_for(runtime.stop(), 60)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others, others


@in_virtual_time
async def test_the_use_of_keys_is_noted_once_in_a_while() -> None:
    store = furnished()
    async with running(store) as runtime:
        runtime.gate.used(1)
        await asyncio.sleep(5)
        assert not store.used_keys
        await asyncio.sleep(6)
        assert list(store.used_keys) == [1]


async def test_a_request_counts_as_a_use_of_its_key() -> None:
    used: list[int] = []
    async with world() as w:
        w.runtime.gate = replace(w.runtime.gate, used=used.append)
        await w.post(dict(HELLO))
    assert used == [1]


async def test_an_account_that_is_paused_takes_no_more_turns_and_loses_its_idle_lanes() -> None:
    async with world("ada", "bo") as w:
        socket = await w.websocket()
        await converse(socket)
        assert w.upstream.observed.open_sockets == 1
        w.store.accounts[1] = replace(w.store.accounts[1], state=State.PAUSED, revision=2)
        await w.runtime.registry.refresh()
        await w.upstream.until(lambda observed: observed.open_sockets == 0)
        await converse(socket)
        assert [turn["account_name"] for turn in await w.settled()] == ["ada", "bo"]


async def test_a_turn_that_waits_for_a_stream_is_woken_by_an_account_that_is_added() -> None:
    async with world(streams=1, faults=("silent_after_created@ada",)) as w:
        blocker = await w.websocket()
        await blocker.send(json.dumps({"type": "response.create", **HELLO}))
        await w.upstream.until(lambda observed: observed.running == 1)
        waiting = asyncio.ensure_future(w.post(dict(HELLO)))
        async with asyncio.timeout(5):
            while not w.runtime.streams.waiting:
                await asyncio.sleep(0.005)
        accounts = w.upstream.backend.accounts
        assert accounts is not None
        w.upstream.backend.accounts = {**accounts, "sim-bo": replace(accounts["sim-ada"], name="bo")}
        w.store.accounts[2] = account(2, "bo", w.upstream.base_url("/backend-api/codex"))
        await w.runtime.registry.refresh()
        assert "Hello from bo" in (await waiting).text


async def test_a_stopping_process_lets_running_turns_end_and_refuses_new_ones() -> None:
    async with world(faults=("slow:0.05",)) as w:
        posting = asyncio.ensure_future(w.post(dict(HELLO)))
        await w.upstream.until(lambda observed: observed.running == 1)
        draining = asyncio.ensure_future(w.runtime.drain())
        await asyncio.sleep(0)
        refused = await w.post(dict(HELLO))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "gateway_stopping")
        assert int(refused.headers["retry-after"]) >= 1
        assert not draining.done()
        assert types(sse_events((await posting).text))[-1] == "response.completed"
        await draining


async def test_turns_that_outlast_the_drain_are_ended_each_with_an_answer() -> None:
    tunables = Tunables(drain_timeout=0.3, close_timeout=0.5)
    async with world(tunables=tunables, faults=("silent_after_created@ada",)) as w:
        headers = {"session-id": "s-1"}
        posts = [asyncio.ensure_future(w.post(dict(HELLO), **headers)) for _ in range(5)]
        socket = await w.websocket()
        await socket.send(json.dumps({"type": "response.create", **HELLO}))
        await w.upstream.until(lambda observed: observed.running == 6)
        await w.runtime.drain()
        for answer in await asyncio.gather(*posts):
            events = sse_events(answer.text)
            assert types(events)[-1] == "response.failed"
            assert events[-1]["response"]["error"]["code"] == "gateway_stopping"
        await asyncio.wait_for(socket.wait_closed(), 5)
        assert {turn["outcome"] for turn in await w.settled()} == {"refused"}
        assert w.runtime.permits.held == 0


async def test_idle_client_sockets_are_told_to_connect_again() -> None:
    async with world() as w:
        socket = await w.websocket()
        await converse(socket)
        await w.runtime.drain()
        await asyncio.wait_for(socket.wait_closed(), 5)
        assert socket.close_code == 1012


async def test_a_probe_learns_whether_the_process_is_alive_and_ready() -> None:
    async with world() as w:
        for path, status in (("/healthz", 200), ("/readyz", 200)):
            assert (await w.client.get(w.url + path)).status_code == status
        w.store.broken = True
        answer = await w.client.get(w.url + "/readyz")
        assert answer.status_code == 503
        assert answer.json()["checks"]["database"] != "ok"
        assert (await w.client.get(w.url + "/healthz")).status_code == 200
        w.store.broken = False


async def test_a_process_without_an_account_says_what_its_operator_has_to_do() -> None:
    async with world() as w:
        w.store.accounts.clear()
        await w.runtime.registry.refresh()
        codex = await w.post(dict(HELLO))
        v1 = await w.post(dict(HELLO), path="/v1/responses")
    assert isinstance(codex, httpx.Response)
    assert (codex.status_code, codex.json()["error"]["code"]) == (400, "no_accounts")
    assert "add_account" in codex.json()["error"]["message"]
    assert (v1.status_code, v1.headers["retry-after"]) == (503, "30")


@pytest.mark.parametrize("tick", [1.0, 10.0])
@in_virtual_time
async def test_the_heartbeat_goes_on_for_as_long_as_the_process_runs(tick: float) -> None:
    store = furnished()
    async with running(store) as runtime:
        first = store.beats[runtime.id]
        await asyncio.sleep(3 * tick)
        assert (store.beats[runtime.id] != first) is (tick == 10.0)


async def test_a_client_that_reads_nothing_does_not_hold_up_the_stop() -> None:
    tunables = Tunables(drain_timeout=0.3, close_timeout=0.3)
    body = json.dumps({**HELLO, "model": "gpt-5.5;events=2000;bytes=20000"}).encode()
    async with world(tunables=tunables, transport="http") as w, RawClient(w, body) as client:
        client.send()
        client.writer.transport.pause_reading()
        async with asyncio.timeout(5):
            while not any(turn.record.events for turn in w.runtime.engine.running):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        await asyncio.wait_for(w.runtime.drain(), 5)
        (turn,) = await w.settled()
        assert turn["outcome"] == "refused"
