"""A turn over HTTP, as its client meets it."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from gateway.conf import Tunables
from tests.gateway.consumers.asgi import CODEX, V1, Edge, body, edge, events


@pytest.fixture
async def made() -> AsyncIterator[Edge]:
    async with edge() as made:
        yield made


async def test_a_streamed_turn_is_answered_by_its_events(made: Edge):
    answer = await made.answer(CODEX, body())
    assert answer.status == 200
    assert events(answer.body)[-1]["type"] == "response.completed"
    assert answer.complete
    (turn,) = await made.settled()
    assert (turn["route"], turn["downstream"], turn["outcome"]) == ("codex", "sse", "completed")


async def test_what_the_upstream_says_before_the_response_is_in_the_headers(made: Edge):
    answer = await made.answer(CODEX, body())
    assert float(answer.headers["x-codex-primary-used-percent"]) == 10
    assert answer.headers["x-codex-turn-state"]
    assert answer.headers["openai-model"] == "gpt-5.5"


async def test_a_turn_without_stream_is_one_document_on_v1_and_a_stream_on_the_codex_root(made: Edge):
    document = await made.answer(V1, body(stream=False))
    assert document.json()["status"] == "completed"
    assert document.json()["output"][0]["type"] == "message"
    assert document.headers["content-type"] == "application/json"
    stream = await made.answer(CODEX, body(stream=False))
    assert events(stream.body)[-1]["type"] == "response.completed"


@pytest.mark.parametrize("shown", ["", "Bearer", "Bearer pm_1_2", "Basic eDp5"])
async def test_without_a_valid_key_nothing_is_read(made: Edge, shown: str):
    answer = await made.answer(CODEX, authorization=shown)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert made.store.turns == {}


async def test_a_body_declared_too_large_is_refused_before_it_comes(made: Edge):
    answer = await made.answer(CODEX, content_length=str(made.runtime.gate.tunables.max_body_bytes + 1))
    assert (answer.status, answer.json()["error"]["code"]) == (400, "body_too_large")


async def test_a_compressed_body_is_the_body_it_was(made: Edge):
    raw = gzip.compress(json.dumps(body()).encode())
    answer = await made.answer(CODEX, raw, content_encoding="gzip")
    assert events(answer.body)[-1]["type"] == "response.completed"


async def test_a_broken_body_is_400_and_gives_its_permit_back(made: Edge):
    answer = await made.answer(CODEX, b"{")
    assert (answer.status, answer.json()["error"]["code"]) == (400, "invalid_json")
    assert made.runtime.permits.held == 0
    assert not made.upstream.observed.requests


async def test_a_client_that_leaves_during_its_upload_gives_its_permit_back(made: Edge):
    client = made.request(CODEX)
    client.say({"type": "http.request", "body": b'{"model":', "more_body": True})
    await asyncio.sleep(0.01)
    assert made.runtime.permits.held == 1
    client.leave()
    await client.ended()
    assert made.runtime.permits.held == 0
    assert client.sent == []


async def test_an_upload_that_outlasts_the_drain_is_refused_so_that_its_client_asks_elsewhere():
    async with edge(tunables=Tunables(drain_timeout=0.1, close_timeout=0.2)) as made:
        client = made.request(CODEX)
        client.say({"type": "http.request", "body": b'{"model":', "more_body": True})
        while not made.runtime.permits.held:
            await asyncio.sleep(0)
        with capture_logs() as logs:
            await made.runtime.drain()
        await client.ended()
        assert (client.status, client.json()["error"]["code"]) == (503, "gateway_stopping")
        assert client.headers["retry-after"] == "2"
        assert not made.runtime.permits.held
    assert "drain_incomplete" not in [log["event"] for log in logs]


async def test_a_client_that_leaves_ends_the_upstreams_work(made: Edge):
    made.upstream.faults.add("silent_after_created")
    client = made.request(CODEX, body())
    await client.until(lambda: client.sent)
    client.leave()
    await client.ended()
    await made.upstream.until(lambda seen: not seen.running)
    (turn,) = await made.settled()
    assert (turn["outcome"], turn["cause"]) == ("client_gone", "client_gone")
    assert made.runtime.permits.held == 0


async def test_a_server_that_ends_the_application_has_its_turn_settled_and_answered_first(made: Edge):
    made.upstream.faults.add("silent")
    client = made.request(CODEX, body())
    await made.upstream.until(lambda seen: seen.running == 1)
    client.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await client.ended()
    assert (client.status, client.json()["error"]["code"]) == (503, "gateway_stopping")
    (turn,) = await made.settled()
    assert turn["outcome"] == "refused"


async def test_a_client_that_takes_nothing_is_cut_with_its_answer_unfinished():
    tunables = Tunables(client_stall_timeout=0.05, close_timeout=0.2)
    async with edge(tunables=tunables) as made:
        client = made.request(CODEX, body())
        client.takes.clear()
        await client.ended()
        assert not client.complete
        (turn,) = await made.settled()
        assert (turn["outcome"], turn["code"]) == ("client_gone", "client_stalled")


async def test_a_client_that_does_not_take_a_keepalive_does_not_keep_its_turn():
    tunables = Tunables(client_stall_timeout=0.1, close_timeout=0.05, keepalive_interval=0.05)
    async with edge(tunables=tunables, faults=("silent_after_created",)) as made:
        client = made.request(CODEX, body())
        await client.until(lambda: b"keepalive" in client.body)
        client.takes.clear()
        await client.ended()
        (turn,) = await made.settled()
        assert (turn["outcome"], turn["code"]) == ("client_gone", "client_stalled")
