"""A turn on real sockets: carried, settled once, explained."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from gateway.conf import Tunables
from tests.support.inprocess import world

HELLO = {
    "model": "gpt-5.5",
    "stream": True,
    "store": False,
    "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
}
FRAME = {"type": "response.create", **HELLO}


def events(text: str) -> list[dict]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


async def test_a_turn_over_sse_is_delivered_and_settled_once():
    async with world() as w:
        answer = await w.post(HELLO)
        assert answer.status_code == 200
        assert [event["type"] for event in events(answer.text)][-1] == "response.completed"
        (turn,) = await w.settled()
    assert turn["outcome"] == "completed"
    assert turn["output_tokens"] > 0
    assert turn["admitted_ms"] <= turn["sent_ms"] <= turn["started_ms"] <= turn["settled_ms"]


async def test_two_turns_on_one_client_socket_use_one_lane():
    async with world() as w:
        socket = await w.websocket()
        for previous in (None, "x"):
            await socket.send(json.dumps(FRAME if previous is None else {**FRAME, "previous_response_id": last}))
            while (event := json.loads(await socket.recv()))["type"] != "response.completed":
                pass
            last = event["response"]["id"]
        turns = await w.settled()
    assert [turn["outcome"] for turn in turns] == ["completed", "completed"]
    assert len({request["connection"] for request in w.upstream.observed.to_json()["requests"]}) == 1


async def test_a_limited_account_is_left_for_another_and_rests():
    async with world("ada", "bo", faults=("usage_limit@ada",)) as w:
        answer = await w.post(HELLO)
        assert "Hello from bo" in answer.text
        (turn,) = await w.settled()
        assert turn["account_name"] == "bo"
        assert turn["attempts"][0]["cause"] == "usage_limit"
        assert w.runtime.registry.get(1).state == "limited"


async def test_a_client_that_leaves_ends_the_upstream_work_at_once():
    async with world(faults=("silent_after_created",)) as w:
        with pytest.raises(httpx.ReadTimeout):
            await w.client.post(f"{w.url}/backend-api/codex/responses", json=HELLO, timeout=0.3)
        (turn,) = await w.settled()
        assert turn["outcome"] == "client_gone"
        await asyncio.sleep(0.05)
        assert w.upstream.observed.to_json()["running"] == 0


async def test_a_silent_upstream_is_given_up_after_the_response_start_timeout():
    async with world(tunables=Tunables(response_start_timeout=0.2), faults=("silent",)) as w:
        answer = await w.post(HELLO)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "upstream_response_start_timeout"
        (turn,) = await w.settled()
        assert turn["outcome"] == "upstream_lost"
