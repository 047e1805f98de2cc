"""A turn on real sockets: carried, settled once. Its neighbours test where it moves and how it ends."""

from __future__ import annotations

import httpx
import pytest

from gateway.conf import Tunables
from tests.support.frames import converse, response_id, sse_events, types
from tests.support.inprocess import world
from tests.support.records import HELLO


async def test_a_turn_over_sse_is_delivered_and_settled_once() -> None:
    async with world() as w:
        answer = await w.post(dict(HELLO))
        assert answer.status_code == 200
        assert types(sse_events(answer.text))[-1] == "response.completed"
        (turn,) = await w.settled()
        closings = [number for batch in w.store.writes for number, outcome in batch if outcome]
    assert turn["outcome"] == "completed"
    assert turn["output_tokens"] > 0
    assert closings == [turn["id"]]


async def test_a_turn_is_in_the_ledger_before_it_is_sent() -> None:
    async with world(faults=("silent",)) as w:
        with pytest.raises(httpx.ReadTimeout):
            await w.client.post(f"{w.url}/backend-api/codex/responses", json=dict(HELLO), timeout=0.3)
        (turn,) = await w.settled()
        ((first, outcome),) = w.store.writes[0]
        assert (first, outcome) == (turn["id"], "")
        assert turn["sent_ms"] is not None


async def test_two_turns_on_one_client_socket_use_one_lane() -> None:
    async with world() as w:
        socket = await w.websocket()
        last = response_id(await converse(socket))
        response_id(await converse(socket, previous_response_id=last))
        turns = await w.settled()
        assert len({request.connection for request in w.upstream.observed.requests}) == 1
    assert [turn["outcome"] for turn in turns] == ["completed", "completed"]


async def test_a_client_that_leaves_ends_the_upstream_work_at_once() -> None:
    async with world(faults=("silent_after_created",)) as w:
        with pytest.raises(httpx.ReadTimeout):
            await w.client.post(f"{w.url}/backend-api/codex/responses", json=dict(HELLO), timeout=0.3)
        (turn,) = await w.settled()
        await w.upstream.until(lambda observed: observed.running == 0, timeout=1)
    assert turn["outcome"] == "client_gone"


async def test_an_upstream_that_starts_no_response_is_given_up_in_time() -> None:
    async with world(tunables=Tunables(response_start_timeout=0.2), faults=("silent",)) as w:
        answer = await w.post(dict(HELLO))
        (turn,) = await w.settled()
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "upstream_response_start_timeout"
    assert (turn["outcome"], turn["cause"]) == ("upstream_lost", "response_start_timeout")
