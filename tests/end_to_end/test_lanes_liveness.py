"""An upstream that stops answering pings: one clear end, no blame, no replay, and everything else goes on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from accounts.states import State
from gateway.conf import Tunables
from tests.end_to_end.clients import TERMINALS, Json, body, frame, read_turn, sse, turn
from tests.gateway.upstream.peers import Handler, speaking
from tests.support.inprocess import World, world

LIVENESS = "upstream_websocket_liveness_timeout"
BRISK = Tunables(websocket_idle_timeout=0.6, close_timeout=0.2, drain_timeout=1)
BUDGET = BRISK.ping_interval + BRISK.websocket_idle_timeout + BRISK.close_timeout
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


@pytest.fixture(autouse=True)
def hostile_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may go where the environment points; a lane that did could not even be opened."""
    for name in PROXIES:
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@asynccontextmanager
async def brisk_world(*faults: str) -> AsyncIterator[World]:
    async with world(tunables=BRISK, faults=faults) as w:
        yield w


async def assert_nobody_is_blamed_and_nothing_is_left(w: World, turns: list[Json]) -> None:
    """After any number of turns: settled once each, the account as healthy as before, no permit held.

    Only a connection that was lost otherwise speaks against the account.
    """
    ledger = await w.settled()
    assert [(row["outcome"], row["code"]) for row in ledger] == [(each["outcome"], each["code"]) for each in turns]
    closed = [turn_id for batch in w.store.writes for turn_id, outcome in batch if outcome]
    assert len(closed) == len(set(closed)) == len(turns)
    account = w.runtime.registry.get(1)
    assert account is not None
    assert (account.state, account.state_reason) == (State.ACTIVE, "")
    circuit = w.runtime.engine.health.circuits.get(1)
    lost = [each for each in turns if each["code"] == "upstream_connection_lost"]
    assert [failed for _, failed in circuit.outcomes if failed] == [True] * len(lost)
    assert w.runtime.permits.held == w.runtime.permits.waiting == 0
    assert w.runtime.streams.active(1) == w.runtime.streams.waiting == 0


EXPIRED = {"outcome": "upstream_lost", "code": LIVENESS}
COMPLETED = {"outcome": "completed", "code": ""}
REFUSED = {"outcome": "refused", "code": "previous_response_not_found"}


@pytest.mark.parametrize("faults", [("no_pongs", "silent"), ("no_pongs/handshake", "silent_after_created")])
async def test_over_sse_the_turn_ends_in_time_with_its_own_code(faults: tuple[str, str]):
    async with brisk_world(*faults) as w:
        began = time.monotonic()
        answer = await w.post(body())
        assert time.monotonic() - began < BUDGET + 0.5
        if faults[1] == "silent":
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "2"
            assert answer.json()["error"]["code"] == LIVENESS
        else:
            failed = sse(answer.content)[-1]
            assert failed["type"] == "response.failed"
            assert failed["response"]["error"]["code"] == LIVENESS
        assert len(w.upstream.observed.requests) == 1, "a turn that was sent is never sent again"
        assert list(w.runtime.pool) == []
        await assert_nobody_is_blamed_and_nothing_is_left(w, [EXPIRED])


async def test_on_a_websocket_with_nothing_sequenced_the_turn_fails_once_and_the_next_one_works():
    async with brisk_world("no_pongs#1", "silent#1") as w:
        client = await w.websocket()
        await client.send(frame())
        events = await read_turn(client)
        assert [event["type"] for event in events] == ["response.failed"]
        assert events[0]["response"]["error"]["code"] == LIVENESS
        assert (await turn(client, frame()))["type"] == "response.completed"
        assert len({request.connection for request in w.upstream.observed.requests}) == 2
        await assert_nobody_is_blamed_and_nothing_is_left(w, [EXPIRED, COMPLETED])


async def test_on_a_websocket_with_sequenced_events_sent_only_a_close_ends_the_turn():
    async with brisk_world("no_pongs", "silent_after_created") as w:
        client = await w.websocket()
        await client.send(frame())
        events = await until_closed(client)
        assert events[-1] == "response.created"
        assert not set(events) & set(TERMINALS)
        assert client.close_code == 1011
        assert len(w.upstream.observed.requests) == 1
        await assert_nobody_is_blamed_and_nothing_is_left(w, [EXPIRED])


async def until_closed(client: ClientConnection) -> list[str]:
    """The types of all frames that come before the socket ends."""
    types: list[str] = []
    try:
        while True:
            types.append(json.loads(await client.recv())["type"])
    except ConnectionClosed:
        return types


# A turn runs, one waits behind it, a third fails for a reason of its own; then pongs stop.


async def run_three(w: World, client: ClientConnection, waiting: str) -> list[list[Json]]:
    """Send a turn that gets no answer, then `waiting`, then no request at all; what each of them is answered."""
    w.upstream.faults.add("no_pongs#1")
    w.upstream.faults.add("silent#1")
    await client.send(frame("runs"))
    await w.upstream.until(lambda seen: seen.running == 1)
    await client.send(waiting)
    await client.send('{"type":"response.cancel"}')
    async with asyncio.timeout(BUDGET + 2):
        return [await read_turn(client) for _ in range(3)]


async def assert_no_frame_follows(client: ClientConnection) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await client.recv()


async def test_a_full_request_that_waits_behind_an_expired_one_runs_on_a_new_lane():
    async with brisk_world() as w:
        client = await w.websocket()
        await turn(client, frame("first"))
        expired, carried, refused = await run_three(w, client, frame("waits"))
        assert [event["type"] for event in expired] == ["response.failed"]
        assert expired[0]["response"]["error"]["code"] == LIVENESS
        assert carried[-1]["type"] == "response.completed"
        assert [(event["status"], event["error"]["code"]) for event in refused] == [(400, "unknown_frame_type")]
        await assert_no_frame_follows(client)
        await assert_nobody_is_blamed_and_nothing_is_left(w, [COMPLETED, EXPIRED, COMPLETED])
        assert len(w.upstream.observed.requests) == 3


async def test_a_delta_that_waits_behind_an_expired_one_is_refused_once_so_that_the_client_resends():
    async with brisk_world() as w:
        client = await w.websocket()
        first = await turn(client, frame("first"))
        delta = frame("waits", previous_response_id=first["response"]["id"])
        expired, gone, refused = await run_three(w, client, delta)
        assert [event["type"] for event in expired] == ["response.failed"]
        assert [(event["status"], event["error"]["code"]) for event in gone] == [(400, "previous_response_not_found")]
        assert [(event["status"], event["error"]["code"]) for event in refused] == [(400, "unknown_frame_type")]
        await assert_no_frame_follows(client)
        assert (await turn(client, frame("everything")))["type"] == "response.completed"
        await assert_nobody_is_blamed_and_nothing_is_left(w, [COMPLETED, EXPIRED, REFUSED, COMPLETED])


async def test_turns_that_wait_for_the_accounts_only_stream_are_woken_when_it_expires():
    async with world(tunables=BRISK, faults=("no_pongs#1", "silent#1"), streams=1) as w:
        expiring = asyncio.ensure_future(w.post(body("runs"), **{"thread-id": "a"}))
        await w.upstream.until(lambda seen: seen.running == 1)
        waiting = [asyncio.ensure_future(w.post(body("waits"), **{"thread-id": name})) for name in "bc"]
        answers = [await each for each in (expiring, *waiting)]
        assert [answer.status_code for answer in answers] == [503, 200, 200]
        await assert_nobody_is_blamed_and_nothing_is_left(w, [EXPIRED, COMPLETED, COMPLETED])


# An upstream of our own


@asynccontextmanager
async def world_at(handler: Handler, tunables: Tunables = BRISK) -> AsyncIterator[World]:
    """A world whose account is at a WebSocket server that runs `handler`."""
    async with speaking(handler, max_size=None) as base_url, world(tunables=tunables) as w:
        w.store.accounts[1] = replace(w.store.accounts[1], base_url=base_url)
        await w.runtime.registry.refresh()
        yield w


async def test_a_peer_that_uses_our_keepalive_words_has_only_closed():
    async def imitate(peer: ServerConnection) -> None:
        await peer.recv()
        await peer.close(1011, "keepalive ping timeout")

    async with world_at(imitate) as w:
        answer = await w.post(body())
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "upstream_connection_lost")
        (row,) = await w.settled()
        assert row["cause"] == "upstream_lost"


def break_while_reading(peer: ServerConnection) -> None:
    peer.transport.abort()


def say_and_break_while_reading(peer: ServerConnection) -> None:
    peer.protocol.send_text(b'{"type":"response.created","sequence_number":0,"response":{"id":"resp_1"}}')
    peer.protocol.send_close(1011)
    peer.send_data()
    peer.transport.abort()


@pytest.mark.parametrize("how", [break_while_reading, say_and_break_while_reading])
@pytest.mark.parametrize("downstream", ["sse", "websocket"])
async def test_a_lane_that_fails_for_sending_and_receiving_at_once_settles_its_turn_once(how: Any, downstream: str):
    """Most of a big request is still unsent when the connection breaks, with or without last words."""

    async def handler(peer: ServerConnection) -> None:
        peer.transport.pause_reading()
        await asyncio.sleep(0.1)
        how(peer)

    big = "x" * 12_000_000
    async with world_at(handler) as w:
        if downstream == "sse":
            answer = await w.post(body(big))
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "upstream_connection_lost")
        else:
            client = await w.websocket()
            await client.send(frame(big))
            failed = await read_turn(client)
            assert [event["type"] for event in failed] == ["response.failed"]
            await assert_no_frame_follows(client)
        lost = {"outcome": "upstream_lost", "code": "upstream_connection_lost"}
        await assert_nobody_is_blamed_and_nothing_is_left(w, [lost])
        assert list(w.runtime.pool) == []
