"""An account that reaches its usage limit in mid-conversation: who goes where, and what the client is told."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from accounts.states import State
from tests.gateway.consumers.asgi import CODEX, Edge, SocketClient, body, edge, events, frame

Json = dict[str, Any]
RESET = 3600
ENDS = ("response.completed", "response.failed", "error")
WITH_REASONING = "gpt-5.5;reasoning=true"


@asynccontextmanager
async def conversation(*names: str, model: str = "gpt-5.5") -> AsyncIterator[tuple[Edge, SocketClient, list[Json]]]:
    """A client's WebSocket on which the first account has answered once, and the history since."""
    async with edge(*names) as made:
        client = await made.socket(thread_id="t")
        await client.frame(frame("one", model=model))
        await client.has("response.completed")
        await made.settled()
        assert [request.account for request in made.upstream.observed.requests] == [names[0]]
        returned = [each["item"] for each in client.frames if each["type"] == "response.output_item.done"]
        yield made, client, [*body("one")["input"], *returned, *body("two")["input"]]


async def turn(client: SocketClient, request: Json) -> Json:
    before = len(client.frames)
    await client.frame(request)
    await client.until(lambda: any(each["type"] in ENDS for each in client.frames[before:]))
    return next(each for each in client.frames[before:] if each["type"] in ENDS)


def response_id(client: SocketClient) -> str:
    return str(client.frames[-1]["response"]["id"])


def assert_at_its_limit(made: Edge) -> None:
    account = made.runtime.registry.get(1)
    assert account is not None
    assert account.state is State.LIMITED
    assert account.state_until == pytest.approx(time.time() + RESET, abs=5)


async def test_a_free_conversation_goes_on_with_another_account_after_one_resend():
    async with conversation("ada", "bo") as (made, client, history):
        made.upstream.faults.add(f"usage_limit:{RESET}@ada")
        refused = await turn(client, frame("two", previous_response_id=response_id(client)))
        assert (refused["status"], refused["error"]["code"]) == (400, "previous_response_not_found")
        assert_at_its_limit(made)
        assert (await turn(client, {**frame(), "input": history}))["type"] == "response.completed"
        assert [request.account for request in made.upstream.observed.requests] == ["ada", "ada", "bo"]
        # And from then on it continues there.
        after = await turn(client, frame("three", previous_response_id=response_id(client)))
        assert after["type"] == "response.completed"
        assert made.upstream.observed.requests[-1].account == "bo"


async def test_a_bound_conversation_gets_the_usage_limit_with_its_reset():
    async with conversation("ada", "bo", model=WITH_REASONING) as (made, client, history):
        assert any("encrypted_content" in item for item in history)
        made.upstream.faults.add(f"usage_limit:{RESET}@ada")
        previous = response_id(client)
        refused = await turn(client, frame("two", model=WITH_REASONING, previous_response_id=previous))
        assert refused["error"]["code"] == "previous_response_not_found"
        told = await turn(client, {**frame(model=WITH_REASONING), "input": history})
        assert (told["status"], told["error"]["type"]) == (429, "usage_limit_reached")
        assert told["error"]["resets_at"] == pytest.approx(time.time() + RESET, abs=5)
        # What is sealed for one account reached no other.
        assert {request.account for request in made.upstream.observed.requests} == {"ada"}


async def test_where_nobody_else_could_take_it_a_continuation_is_told_the_limit_at_once():
    async with conversation("ada") as (made, client, _):
        made.upstream.faults.add(f"usage_limit:{RESET}")
        told = await turn(client, frame("two", previous_response_id=response_id(client)))
        assert (told["status"], told["error"]["type"]) == (429, "usage_limit_reached")
        assert told["error"]["resets_at"] == pytest.approx(time.time() + RESET, abs=5)
        assert_at_its_limit(made)


async def test_a_continuation_of_an_account_that_is_known_to_be_limited_is_not_even_sent():
    async with conversation("ada", "bo") as (made, client, _):
        made.runtime.registry.mark_limited(1, time.time() + RESET, "usage limit reached")
        refused = await turn(client, frame("two", previous_response_id=response_id(client)))
        assert refused["error"]["code"] == "previous_response_not_found"
        assert len(made.upstream.observed.requests) == 1


async def test_over_sse_a_free_conversation_goes_on_with_another_account_and_its_client_sees_nothing():
    async with edge("ada", "bo") as made:
        first = await made.answer(CODEX, body("one"), thread_id="t")
        await made.settled()
        returned = [event["item"] for event in events(first.body) if event["type"] == "response.output_item.done"]
        made.upstream.faults.add(f"usage_limit:{RESET}@ada")
        history = [*body("one")["input"], *returned, *body("two")["input"]]
        second = await made.answer(CODEX, {**body(), "input": history}, thread_id="t")
        assert second.status == 200
        assert events(second.body)[-1]["type"] == "response.completed"
        assert_at_its_limit(made)
        accounts = [request.account for request in made.upstream.observed.requests]
        assert (accounts[0], accounts[-1]) == ("ada", "bo")


async def test_over_sse_a_bound_conversation_gets_the_limit_as_a_status():
    async with edge("ada", "bo") as made:
        first = await made.answer(CODEX, body("one", model=WITH_REASONING), thread_id="t")
        await made.settled()
        returned = [event["item"] for event in events(first.body) if event["type"] == "response.output_item.done"]
        made.upstream.faults.add(f"usage_limit:{RESET}@ada")
        history = [*body("one")["input"], *returned, *body("two")["input"]]
        told = await made.answer(CODEX, {**body(model=WITH_REASONING), "input": history}, thread_id="t")
        assert (told.status, told.json()["error"]["type"]) == (429, "usage_limit_reached")
        assert told.json()["error"]["resets_at"] == pytest.approx(time.time() + RESET, abs=5)
        assert {request.account for request in made.upstream.observed.requests} == {"ada"}


async def test_turn_state_stays_behind_when_a_limit_moves_its_turn():
    """The client echoes it with every request of one turn of its user's; only the account that issued it may see it."""
    async with conversation("ada", "bo") as (made, client, history):
        state = next(each["headers"] for each in client.frames if each["type"] == "response.metadata")
        echoed = {"client_metadata": {"x-codex-turn-state": state["x-codex-turn-state"]}}
        made.upstream.faults.add(f"usage_limit:{RESET}@ada")
        refused = await turn(client, frame("two", previous_response_id=response_id(client), **echoed))
        assert refused["error"]["code"] == "previous_response_not_found"
        assert (await turn(client, {**frame(**echoed), "input": history}))["type"] == "response.completed"
        last = made.upstream.observed.requests[-1]
        assert (last.account, last.body.turn_state) == ("bo", None)
