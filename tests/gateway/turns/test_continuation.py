"""Continuations: on the lane that owns them, or not at all."""

from __future__ import annotations

import json

from gateway.conf import Tunables
from tests.support.inprocess import World, world


def message(text: str, role: str = "user") -> dict:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def full(*items: dict, **more: object) -> dict:
    return {"model": "gpt-5.5", "stream": True, "store": False, "input": list(items), **more}


def events(text: str) -> list[dict]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def returned(text: str) -> list[dict]:
    return [event["item"] for event in events(text) if event["type"] == "response.output_item.done"]


def seen(w: World) -> list[dict]:
    return w.upstream.observed.to_json()["requests"]


async def test_a_full_request_that_extends_what_a_lane_holds_is_sent_as_a_delta():
    async with world() as w:
        first = await w.post(full(message("one")), **{"thread-id": "t"})
        await w.settled()
        history = [message("one"), *returned(first.text), message("two")]
        second = await w.post(full(*history), **{"thread-id": "t"})
        assert "response.completed" in second.text
        await w.settled()
        third = await w.post(full(*history, *returned(second.text), message("three")), **{"thread-id": "t"})
        assert "response.completed" in third.text
    requests = seen(w)
    assert [request["body"]["input_length"] for request in requests] == [1, 1, 1]
    assert [request["body"]["previous_response_id"] is not None for request in requests] == [False, True, True]
    assert len({request["connection"] for request in requests}) == 1


async def test_a_request_with_another_setting_or_history_is_sent_in_full():
    async with world() as w:
        first = await w.post(full(message("one")), **{"thread-id": "t"})
        await w.settled()
        history = [message("one"), *returned(first.text), message("two")]
        await w.post(full(*history, reasoning={"effort": "high"}), **{"thread-id": "t"})
        await w.settled()
        await w.post(full(message("other"), *history[1:]), **{"thread-id": "t"})
    assert all(request["body"]["previous_response_id"] is None for request in seen(w))


async def test_an_implicit_delta_that_the_upstream_does_not_know_goes_once_in_full():
    async with world() as w:
        first = await w.post(full(message("one")), **{"thread-id": "t"})
        await w.settled()
        w.upstream.faults.add("previous_not_found#1")
        second = await w.post(full(message("one"), *returned(first.text), message("two")), **{"thread-id": "t"})
        assert "response.completed" in second.text
        turns = await w.settled()
    assert [request["body"]["previous_response_id"] is None for request in seen(w)] == [True, False, True]
    assert turns[1]["attempts"][0]["cause"] == "previous_not_found"


async def test_a_continuation_whose_lane_is_gone_is_refused_so_that_the_client_resends():
    async with world() as w:
        socket = await w.websocket()
        await socket.send(
            json.dumps({"type": "response.create", **full(message("one"), previous_response_id="resp_x")})
        )
        frame = json.loads(await socket.recv())
    assert (frame["type"], frame["status"], frame["error"]["code"]) == ("error", 400, "previous_response_not_found")
    assert seen(w) == []


async def test_another_client_socket_cannot_continue_on_a_private_lane():
    async with world() as w:
        one, two = await w.websocket(), await w.websocket()
        await one.send(json.dumps({"type": "response.create", **full(message("one"))}))
        while (event := json.loads(await one.recv()))["type"] != "response.completed":
            pass
        delta = full(message("two"), previous_response_id=event["response"]["id"])
        await two.send(json.dumps({"type": "response.create", **delta}))
        assert json.loads(await two.recv())["error"]["code"] == "previous_response_not_found"
        assert len(seen(w)) == 1


async def test_concurrent_requests_of_one_session_get_lanes_of_their_own():
    import asyncio

    async with world(faults=("slow:0.02",)) as w:
        await asyncio.gather(*(w.post(full(message(str(n))), **{"session-id": "s"}) for n in range(3)))
    assert len({request["connection"] for request in seen(w)}) == 3


async def test_a_lane_past_its_age_is_not_continued_on():
    async with world(tunables=Tunables(lane_max_age=0.01)) as w:
        socket = await w.websocket()
        await socket.send(json.dumps({"type": "response.create", **full(message("one"))}))
        while (event := json.loads(await socket.recv()))["type"] != "response.completed":
            pass
        await w.settled()
        delta = full(message("two"), previous_response_id=event["response"]["id"])
        await socket.send(json.dumps({"type": "response.create", **delta}))
        assert json.loads(await socket.recv())["error"]["code"] == "previous_response_not_found"


async def test_a_response_that_a_sign_in_was_told_not_to_store_is_continued_nowhere():
    async with world(transport="http") as w:
        first = await w.post({"model": "gpt-5.5", "stream": True, "input": "one"}, path="/v1/responses")
        (response_id,) = [e["response"]["id"] for e in events(first.text) if e["type"] == "response.completed"]
        await w.settled()
        more = {"model": "gpt-5.5", "stream": True, "input": "two", "previous_response_id": response_id}
        second = await w.post(more, path="/v1/responses")
        assert (second.status_code, second.json()["error"]["code"]) == (400, "previous_response_not_found")
    assert len(seen(w)) == 1, "the account was not asked for what it does not have"
