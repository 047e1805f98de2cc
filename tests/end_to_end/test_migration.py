"""Conversations that migrate: what stays behind, what does not go, and what is said about it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from accounts.states import State
from gateway.conf import Tunables
from gateway.continuity.rules import SessionKind, Strength
from gateway.simulator.seal import seal
from tests.end_to_end.test_hard_owners import (
    RESET,
    THREAD,
    accounts,
    assert_stuck,
    key,
    limit,
    message,
    set_state,
    tie,
)
from tests.gateway.consumers.asgi import CODEX, Edge, HttpClient, body, edge, events, frame

Json = dict[str, Any]
MIGRATING = Tunables(migrate_conversations=True, close_timeout=0.5, drain_timeout=2)
THINKING = "gpt-5.5;reasoning=true"


def returned(told: HttpClient) -> list[Json]:
    return [event["item"] for event in events(told.body) if event["type"] == "response.output_item.done"]


@asynccontextmanager
async def thinking(tunables: Tunables = MIGRATING) -> AsyncIterator[tuple[Edge, list[Json]]]:
    """A conversation in which `ada` has thought once, and its history since; then `ada` is limited."""
    async with edge("ada", "bo", tunables=tunables) as made:
        told = await made.answer(CODEX, body("one", model=THINKING), thread_id="t")
        await made.settled()
        limit(made)
        yield made, [*body("one")["input"], *returned(told), message("two")]


async def turn(made: Edge, history: list[Json], model: str = THINKING, **headers: str) -> HttpClient:
    told = await made.answer(CODEX, {**body(model=model), "input": history}, thread_id="t", **headers)
    await made.settled()
    return told


async def test_reasoning_is_dropped_and_the_conversation_goes_on_elsewhere():
    async with thinking() as (made, history):
        with capture_logs() as logs:
            told = await turn(made, history)
        assert events(told.body)[-1]["type"] == "response.completed"
        assert accounts(made) == ["ada", "bo"]
        sent = made.upstream.observed.requests[-1].body
        assert sent is not None
        assert sent.input_types == {"message": 3}
        last = (await made.settled())[-1]
        assert last["attempts"][-1]["left"] == "ada by migration, reasoning dropped (1 items)"
        (left,) = [log for log in logs if log["event"] == "conversation_left"]
        assert (left["why"], left["dropped"], left["account"]) == ("migration", 1, "bo")


async def test_what_was_dropped_once_stays_dropped_though_the_client_sends_it_again():
    async with thinking() as (made, history):
        second = await turn(made, history)
        third = await turn(made, [*history, *returned(second), message("three")])
        assert events(third.body)[-1]["type"] == "response.completed"
        # Also by another process, which knows only what is stored.
        stored, _ = made.store.sessions[THREAD]
        assert (stored.account_id, stored.strength, len(stored.left_behind)) == (2, Strength.HARD, 1)
        # And when the owner is back: what it thought is not needed any more.
        await set_state(made, State.ACTIVE)
        fourth = await turn(made, [*history, *returned(second), message("three"), *returned(third), message("four")])
        assert events(fourth.body)[-1]["type"] == "response.completed"
        assert accounts(made) == ["ada", "bo", "bo", "bo"]


async def test_on_a_websocket_the_full_input_after_a_refused_continuation_migrates():
    async with edge("ada", "bo", tunables=MIGRATING) as made:
        client = await made.socket(thread_id="t")
        await client.frame(frame("one", model=THINKING))
        await client.has("response.completed")
        await made.settled()
        made.upstream.faults.add(f"usage_limit:{RESET:.0f}@ada")
        history = [*body("one")["input"]]
        history += [each["item"] for each in client.frames if each["type"] == "response.output_item.done"]
        previous = client.frames[-1]["response"]["id"]
        await client.frame(frame("two", model=THINKING, previous_response_id=previous))
        await client.has("error")
        assert client.frames[-1]["error"]["code"] == "previous_response_not_found"
        await client.frame({**frame(model=THINKING), "input": [*history, message("two")]})
        await client.has("response.completed", 2)
        assert accounts(made) == ["ada", "ada", "bo"]


async def test_a_turn_whose_owner_refuses_it_migrates_at_once():
    async with edge("ada", "bo", tunables=MIGRATING) as made:
        told = await made.answer(CODEX, body("one", model=THINKING), thread_id="t")
        await made.settled()
        made.upstream.faults.add(f"usage_limit:{RESET:.0f}@ada")
        second = await turn(made, [*body("one")["input"], *returned(told), message("two")])
        assert events(second.body)[-1]["type"] == "response.completed"
        assert accounts(made)[-1] == "bo"


@pytest.mark.parametrize(
    ("key_says", "setting", "moves"), [(True, False, True), (False, True, False), (None, True, True)]
)
async def test_the_key_decides_before_the_setting(key_says: bool | None, setting: bool, moves: bool):
    async with thinking(replace(MIGRATING, migrate_conversations=setting)) as (made, history):
        made.store.keys = [replace(made.store.keys[0], migrates=key_says)]
        made.runtime.keys.replace(made.store.keys)
        told = await turn(made, history)
        assert accounts(made) == (["ada", "bo"] if moves else ["ada"])
        assert (told.status == 200) is moves


async def test_while_it_is_off_the_error_names_the_setting_and_the_reset():
    async with thinking(replace(MIGRATING, migrate_conversations=False)) as (made, history):
        error = assert_stuck(await turn(made, history))
        assert "GATEWAY_MIGRATE_CONVERSATIONS is off; on, it would go on" in error["message"]
        assert "UTC" in error["message"]


async def test_while_it_is_off_the_refusal_itself_names_the_setting_and_the_reset():
    async with edge("ada", "bo") as made:
        told = await made.answer(CODEX, body("one", model=THINKING), thread_id="t")
        await made.settled()
        made.upstream.faults.add(f"usage_limit:{RESET:.0f}@ada")
        second = await turn(made, [*body("one")["input"], *returned(told), message("two")])
        assert "GATEWAY_MIGRATE_CONVERSATIONS is off" in assert_stuck(second)["message"]


@pytest.mark.parametrize(
    "more",
    [
        {"type": "message", "role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]},
        {"type": "compaction", "encrypted_content": seal("ada", "summary")},
        {"type": "item_reference", "id": "msg_1"},
    ],
    ids=lambda item: item["type"],
)
async def test_whatever_else_is_bound_stays_where_it_is(more: Json):
    async with thinking() as (made, history):
        error = assert_stuck(await turn(made, [*history, more]))
        assert "More than reasoning" in error["message"]
        assert accounts(made) == ["ada"]


async def test_a_stored_conversation_and_turn_state_stay_where_they_are():
    async with thinking() as (made, history):
        told = await made.answer(CODEX, {**body(), "input": history, "conversation": "conv_1"}, thread_id="t")
        assert_stuck(told)
        tie(made, key(SessionKind.TURN_STATE, "shown"))
        assert_stuck(await turn(made, history, x_codex_turn_state="shown"))
        assert accounts(made) == ["ada"]


async def test_an_account_that_is_back_within_ten_minutes_keeps_its_conversations():
    async with edge("ada", "bo", tunables=MIGRATING) as made:
        told = await made.answer(CODEX, body("one", model=THINKING), thread_id="t")
        await made.settled()
        limit(made, seconds=500)
        second = await turn(made, [*body("one")["input"], *returned(told), message("two")])
        assert second.status == 429
        assert accounts(made) == ["ada"]
