"""Silence of an upstream that is alive: the client is kept informed, and every silence has its limit."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from gateway.conf import Tunables
from tests.end_to_end.clients import CODEX, V1, Json, body, frame, sse
from tests.support.inprocess import World, world

# A minute of silence and more, with its keepalives and limits, at a small part of its time.
SCALED = Tunables(
    keepalive_interval=0.1,
    header_wait=0.2,
    response_start_timeout=0.8,
    stream_idle_timeout=0.6,
    websocket_idle_timeout=0.6,
    close_timeout=0.2,
    drain_timeout=1,
)
TRANSPORTS = ["websocket", "http"]


def silence(events: list[Json]) -> int:
    return [event["type"] for event in events].count("keepalive")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_before_the_response_an_sse_client_gets_headers_then_keepalives_then_one_end(transport: str):
    async with world(transport=transport, tunables=SCALED, faults=("silent",)) as w:
        began = time.monotonic()
        async with w.client.stream("POST", w.url + CODEX, json=body()) as answer:
            headers_after = time.monotonic() - began
            content = await answer.aread()
        took = time.monotonic() - began
    assert answer.status_code == 200
    assert SCALED.header_wait <= headers_after < SCALED.response_start_timeout
    events = sse(content)
    assert silence(events) >= 3
    assert [event["type"] for event in events if event["type"] != "keepalive"] == ["response.failed"]
    assert events[-1]["response"]["error"]["code"] == "upstream_response_start_timeout"
    assert SCALED.response_start_timeout <= took < SCALED.response_start_timeout + 1


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_in_the_middle_of_a_response_keepalives_come_until_it_has_been_silent_for_too_long(transport: str):
    async with world(transport=transport, tunables=SCALED, faults=("silent_after_created",)) as w:
        began = time.monotonic()
        answer = await w.post(body())
        took = time.monotonic() - began
        (row,) = await w.settled()
    events = sse(answer.content)
    assert [event["type"] for event in events if event["type"] == "response.created"]
    assert 3 <= silence(events) <= 7
    assert events[-1]["response"]["error"]["code"] == "stream_idle_timeout"
    assert SCALED.stream_idle_timeout <= took < SCALED.stream_idle_timeout + 1
    assert row["outcome"] == "upstream_lost"


async def test_on_v1_silence_is_broken_by_comments_that_no_client_takes_for_an_event():
    async with world(tunables=SCALED, faults=("silent_after_created",)) as w:
        answer = await w.post(body(), V1)
    assert answer.text.count(": keepalive\n\n") >= 3
    assert silence(sse(answer.content)) == 0


async def test_a_websocket_client_gets_keepalive_frames_and_then_one_end():
    async with world(tunables=SCALED, faults=("silent",)) as w:
        client = await w.websocket()
        began = time.monotonic()
        await client.send(frame())
        events: list[Json] = []
        while not events or events[-1]["type"] == "keepalive":
            events.append(json.loads(await client.recv()))
        took = time.monotonic() - began
    assert silence(events) >= 5
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "upstream_response_start_timeout"
    assert SCALED.response_start_timeout <= took < SCALED.response_start_timeout + 1


async def pings(w: World) -> int:
    (socket,) = w.upstream.observed.sockets
    return socket.pings


async def test_an_upstream_that_is_silent_but_answers_pings_is_alive_for_as_long_as_its_response_may_take():
    """Three times the budget for pongs: silence of the application is no failure of the path."""
    patient = Tunables(websocket_idle_timeout=0.3, keepalive_interval=0.1, close_timeout=0.2, drain_timeout=1)
    async with world(tunables=patient, faults=("slow:0.9",)) as w:
        client = await w.websocket()
        await client.send(frame())
        events: list[Json] = []
        async with asyncio.timeout(20):
            while [event["type"] for event in events].count("response.in_progress") < 1:
                events.append(json.loads(await client.recv()))
        assert silence(events) >= 3
        assert await pings(w) >= 5
        await client.close()
        await w.settled()


async def test_events_and_keepalives_never_mix_and_everything_arrives():
    eager = Tunables(keepalive_interval=0.01, drain_timeout=1)
    async with world(transport="websocket", tunables=eager, faults=("slow:0.02",)) as w:
        answer = await w.post(body())
    events = sse(answer.content)
    numbers = [event["sequence_number"] for event in events if "sequence_number" in event]
    assert numbers == list(range(len(numbers)))
    assert events[-1]["type"] == "response.completed"
    assert silence(events) >= 5
