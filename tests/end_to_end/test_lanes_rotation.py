"""Lanes grow old, are cut by their upstream, or hear things while nobody listens: no turn is lost by it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.clock import Clock
from gateway.conf import Tunables
from tests.gateway.consumers.asgi import CODEX, Edge, SocketClient, body, edge, events, frame

Json = dict[str, Any]
HOUR = 3600.0
# Longer than the 15 s after which a lane is asked whether it still lives.
SILENT = 16.0
TUNABLES = Tunables(close_timeout=0.5, drain_timeout=1)


class Later:
    """A clock that can be put forward."""

    def __init__(self) -> None:
        self.by = 0.0

    def clock(self) -> Clock:
        return Clock(monotonic=lambda: time.monotonic() + self.by)


@asynccontextmanager
async def at_any_time(*faults: str, **changes: object) -> AsyncIterator[tuple[Edge, Later]]:
    later = Later()
    changes = {"transport": "websocket", **changes}
    async with edge(clock=later.clock(), tunables=TUNABLES, faults=faults, **changes) as made:
        yield made, later


async def turn(client: SocketClient, request: Json) -> Json:
    """Send a frame and return the last event of its answer."""
    before = len(client.frames)
    await client.frame(request)
    ends = ("response.completed", "response.failed", "response.incomplete", "error")
    await client.until(lambda: any(each["type"] in ends for each in client.frames[before:]))
    return next(each for each in client.frames[before:] if each["type"] in ends)


def delta(previous: Json) -> Json:
    return frame("more", previous_response_id=previous["response"]["id"])


def connections(made: Edge) -> list[int]:
    return [request.connection for request in made.upstream.observed.requests]


def assert_resend(answer: Json) -> None:
    """What tells the Codex client to send everything once more, which its user does not see."""
    assert answer["type"] == "error"
    assert (answer["status"], answer["error"]["code"]) == (400, "previous_response_not_found")


# Age


async def test_a_lane_past_its_age_is_replaced_before_the_next_full_request():
    async with at_any_time() as (made, later):
        client = await made.socket()
        await turn(client, frame())
        await made.settled()
        later.by = TUNABLES.lane_max_age + 1
        assert (await turn(client, frame()))["type"] == "response.completed"
        first, second = connections(made)
        assert first != second
        await made.upstream.until(lambda seen: seen.open_sockets == 1)


async def test_a_continuation_on_a_lane_past_its_age_is_sent_anew_by_the_client():
    async with at_any_time() as (made, later):
        client = await made.socket()
        first = await turn(client, frame())
        await made.settled()
        later.by = TUNABLES.lane_max_age + 1
        assert_resend(await turn(client, delta(first)))
        assert (await turn(client, frame()))["type"] == "response.completed"
        assert len(made.upstream.observed.requests) == 2


async def test_a_lane_that_carries_a_response_is_never_too_old():
    async with at_any_time("slow:0.02") as (made, later):
        client = await made.socket()
        await client.frame(frame())
        await client.has("response.created")
        later.by = 10 * HOUR
        await made.runtime.pool.sweep()
        await client.has("response.completed")
        await made.settled()
        await made.runtime.pool.sweep()
        assert list(made.runtime.pool) == []


# The upstream's limit of an hour


async def test_at_the_upstreams_limit_a_full_request_reconnects_once_and_its_client_sees_nothing():
    async with at_any_time() as (made, _):
        client = await made.socket()
        await turn(client, frame())
        made.upstream.faults.add("connection_limit#1")
        assert (await turn(client, frame()))["type"] == "response.completed"
        assert "error" not in [each["type"] for each in client.frames]
        assert len(connections(made)) == 3
        assert len(set(connections(made))) == 2
        rows = await made.settled()
        assert [attempt["cause"] for attempt in rows[1]["attempts"][:1]] == ["connection_limit"]
        assert made.runtime.registry.get(1).state == "active"


async def test_a_limit_that_is_met_again_on_the_new_lane_is_passed_on():
    async with at_any_time("connection_limit") as (made, _):
        client = await made.socket()
        told = await turn(client, frame())
        assert (told["status"], told["error"]["code"]) == (400, "websocket_connection_limit_reached")
        assert len(made.upstream.observed.requests) == 2


async def test_at_the_upstreams_limit_a_continuation_gets_the_upstreams_words_unchanged():
    async with at_any_time() as (made, _):
        client = await made.socket()
        first = await turn(client, frame())
        made.upstream.faults.add("connection_limit#1")
        told = await turn(client, delta(first))
        assert (told["status"], told["error"]["code"]) == (400, "websocket_connection_limit_reached")
        assert len(made.upstream.observed.requests) == 2
        assert (await turn(client, frame()))["type"] == "response.completed"


# Silence between two turns


async def test_a_lane_that_was_silent_is_pinged_before_it_is_used_again():
    async with at_any_time() as (made, later):
        client = await made.socket()
        first = await turn(client, frame())
        await made.settled()
        later.by = SILENT
        assert (await turn(client, delta(first)))["type"] == "response.completed"
        (socket,) = made.upstream.observed.sockets
        assert (socket.pings, socket.requests) == (1, 2)


async def test_a_half_open_lane_costs_a_reconnect_and_no_turn():
    async with at_any_time() as (made, later):
        client = await made.socket()
        await turn(client, frame())
        await made.settled()
        made.upstream.faults.add("no_pongs/idle")
        later.by = SILENT
        assert (await turn(client, frame()))["type"] == "response.completed"
        assert len(set(connections(made))) == 2
        rows = await made.settled()
        assert [row["outcome"] for row in rows] == ["completed", "completed"]


async def test_a_continuation_of_a_half_open_lane_is_sent_anew_by_the_client():
    async with at_any_time() as (made, later):
        client = await made.socket()
        first = await turn(client, frame())
        await made.settled()
        made.upstream.faults.add("no_pongs/idle")
        later.by = SILENT
        assert_resend(await turn(client, delta(first)))
        assert len(made.upstream.observed.requests) == 1


@pytest.mark.parametrize("code", [1000, 1001, 1011, 1012])
async def test_a_lane_that_is_closed_while_idle_costs_a_reconnect_and_a_continuation_its_resend(code: int):
    async with at_any_time() as (made, _):
        client = await made.socket()
        first = await turn(client, frame())
        await made.settled()
        made.upstream.faults.add(f"close_idle:{code}")
        # Sent at once: the lane may still be in its closing handshake.
        assert_resend(await turn(client, delta(first)))
        assert (await turn(client, frame()))["type"] == "response.completed"
        assert made.runtime.registry.get(1).state == "active"


async def test_a_continuation_whose_lane_is_lost_while_it_waits_for_its_account_is_sent_nowhere():
    """Its response was on that lane alone; over HTTP the upstream could only say that it does not know it."""
    async with at_any_time(streams=1, transport="auto") as (made, _):
        client = await made.socket()
        first = await turn(client, frame())
        await made.settled()
        made.upstream.faults.add("silent#1")
        other = await made.socket()
        await other.frame(frame())
        await made.upstream.until(lambda seen: seen.running == 1)
        await client.frame(delta(first))
        async with asyncio.timeout(5):
            while not made.runtime.streams.waiting:
                await asyncio.sleep(0.001)
        (lane,) = (lane for lane in made.runtime.pool if lane.state == "open")
        await lane.connection.close()
        other.leave()
        await other.ended()
        await client.has("error")
        assert_resend(client.frames[-1])
        assert len(made.upstream.observed.requests) == 2


# What comes while a lane is idle


async def test_rate_limits_that_came_while_a_lane_was_idle_are_passed_on_with_the_next_turn():
    async with at_any_time() as (made, _):
        client = await made.socket()
        first = await turn(client, frame())
        await made.settled()
        made.upstream.faults.add("idle_rate_limits#1")
        await arrived(made)
        before = len(client.frames)
        assert (await turn(client, delta(first)))["type"] == "response.completed"
        types = [each["type"] for each in client.frames[before:]]
        assert types[:2] == ["codex.rate_limits", "codex.rate_limits"]
        assert len(set(connections(made))) == 1


async def test_rate_limits_that_came_while_a_lane_was_idle_count_for_the_account():
    async with at_any_time() as (made, _):
        client = await made.socket()
        first = await turn(client, frame())
        await made.settled()
        assert made.upstream.backend.accounts is not None
        made.upstream.backend.accounts["sim-ada"].used_percent = 77.0
        made.upstream.faults.add("idle_rate_limits#1")
        await arrived(made)
        # The next answer, which would tell the same, does not come.
        made.upstream.faults.add("silent#1")
        await client.frame(delta(first))
        await made.upstream.until(lambda seen: seen.running == 1)
        assert made.runtime.engine.health.quotas.get(1).used_percent(time.time()) == 77
        client.leave()
        await client.ended()


async def test_rate_limits_that_came_while_a_lane_was_idle_become_headers_of_the_next_answer():
    async with at_any_time() as (made, _):
        await made.answer(CODEX, body(), thread_id="t")
        await made.settled()
        made.upstream.faults.add("idle_rate_limits#1")
        await arrived(made)
        answer = await made.answer(CODEX, body("another"), thread_id="t")
        assert "x-codex-primary-used-percent" in answer.headers
        assert [event["type"] for event in events(answer.body)].count("codex.rate_limits") == 2
        assert len(set(connections(made))) == 1


async def arrived(made: Edge) -> None:
    """Wait until the idle lane holds something that nobody has read."""
    (lane,) = made.runtime.pool
    async with asyncio.timeout(5):
        while not lane.connection.waiting_messages:
            await asyncio.sleep(0.001)


async def test_a_lane_that_heard_anything_else_is_not_used_again():
    """A second terminal event would be taken for the end of the next response."""
    async with at_any_time("extra_after_terminal#1") as (made, _):
        client = await made.socket()
        first = await turn(client, frame())
        await made.settled()
        await arrived(made)
        assert_resend(await turn(client, delta(first)))
        assert (await turn(client, frame()))["type"] == "response.completed"
        types = [each["type"] for each in client.frames]
        assert types.count("response.completed") == 2
        assert len(set(connections(made))) == 2


async def test_a_full_request_finds_another_lane_when_its_own_heard_too_much():
    async with at_any_time("extra_after_terminal#1") as (made, _):
        client = await made.socket()
        await turn(client, frame())
        await made.settled()
        await arrived(made)
        assert (await turn(client, frame()))["type"] == "response.completed"
        assert len(set(connections(made))) == 2
        rows = await made.settled()
        assert [row["outcome"] for row in rows] == ["completed", "completed"]
