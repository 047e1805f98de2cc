"""Conversations that are tied to an account which cannot be used: who may leave it, and what the others are told."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from accounts.states import State
from gateway.continuity.rules import SessionKey, SessionKind, Strength, digest
from gateway.continuity.sessions import Session
from tests.gateway.consumers.asgi import CODEX, Edge, HttpClient, body, edge, events, frame

Json = dict[str, Any]
RESET = 3600.0
GOAL = '<codex_internal_context source="goal">Ship it.</codex_internal_context>'
FILE = {"type": "input_file", "file_id": "file_1"}
REASONING = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAAA-of-ada"}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "done"}


def key(kind: SessionKind, value: str) -> SessionKey:
    return SessionKey(1, kind, digest(1, kind, value))


THREAD = key(SessionKind.THREAD, "t")


def message(text: str) -> Json:
    return {
        "type": "message",
        "id": f"msg_{len(text)}_of_ada",
        "role": "user",
        "content": [{"type": "input_text", "text": text}],
    }


def goal(*items: Json, **members: object) -> Json:
    """A request that starts its goal anew; `items` follow in its input."""
    return {**body(**members), "input": [message(GOAL), *items]}


def tie(made: Edge, session: SessionKey = THREAD, strength: Strength = Strength.HARD, account: int = 1) -> None:
    """The conversation has lived on an account, as everybody knows."""
    stored = Session(session, account, strength, time.time())
    made.store.sessions[session] = (stored, made.runtime.id)
    made.runtime.sessions.replace(stored)


def limit(made: Edge, account: int = 1, seconds: float = RESET) -> None:
    made.runtime.registry.mark_limited(account, time.time() + seconds, "usage limit reached")


async def set_state(made: Edge, state: State) -> None:
    before = made.store.accounts[1]
    until = time.time() + RESET if state is State.LIMITED else None
    made.store.accounts[1] = replace(before, state=state, state_until=until, revision=before.revision + 1)
    await made.runtime.registry.refresh()


@asynccontextmanager
async def stuck(*names: str, state: State = State.LIMITED, **options: Any) -> AsyncIterator[Edge]:
    """A conversation, thread `t`, tied hard to `ada`, which cannot be used; `bo` can."""
    async with edge(*(names or ("ada", "bo")), **options) as made:
        tie(made)
        await set_state(made, state)
        yield made


def accounts(made: Edge) -> list[str]:
    return [request.account for request in made.upstream.observed.requests]


def assert_stuck(told: HttpClient) -> Json:
    assert (told.status, told.json()["error"]["type"]) == (429, "usage_limit_reached")
    assert told.json()["error"]["resets_at"] == pytest.approx(time.time() + RESET, abs=5)
    error: Json = told.json()["error"]
    assert "tied to an account" in error["message"]
    return error


@pytest.mark.parametrize("state", [State.LIMITED, State.PAUSED, State.NEEDS_LOGIN, State.DISABLED])
async def test_a_self_contained_goal_restart_leaves_an_account_that_cannot_be_used(state: State):
    async with stuck(state=state) as made:
        with capture_logs() as logs:
            told = await made.answer(CODEX, goal(CALL, OUTPUT), thread_id="t")
        assert events(told.body)[-1]["type"] == "response.completed"
        assert accounts(made) == ["bo"]
        stored, _ = made.store.sessions[THREAD]
        assert (stored.account_id, stored.strength) == (2, Strength.SOFT)
        (turn,) = await made.settled()
        assert turn["attempts"][-1]["left"] == "ada by goal restart"
        assert [log["left"] for log in logs if log["event"] == "conversation_left"] == ["ada"]


async def test_from_then_on_the_conversation_lives_where_it_went():
    async with stuck() as made:
        await made.answer(CODEX, goal(), thread_id="t")
        await made.settled()
        await set_state(made, State.ACTIVE)
        await made.answer(CODEX, body("next"), thread_id="t")
        assert accounts(made) == ["bo", "bo"]


async def test_without_the_marker_a_tied_conversation_keeps_its_owner_and_is_told_so():
    async with stuck() as made:
        error = assert_stuck(await made.answer(CODEX, body("plain"), thread_id="t"))
        assert "GATEWAY_MIGRATE_CONVERSATIONS is off" in error["message"]
        assert "UTC" in error["message"]
        assert accounts(made) == []
        stored, _ = made.store.sessions[THREAD]
        assert (stored.account_id, stored.strength) == (1, Strength.HARD)


@pytest.mark.parametrize("state", [State.PAUSED, State.NEEDS_LOGIN, State.DISABLED])
async def test_a_conversation_without_a_reset_ahead_is_told_what_holds_it(state: State):
    async with stuck(state=state) as made:
        told = await made.answer(CODEX, body("plain"), thread_id="t")
        assert (told.status, told.json()["error"]["code"]) == (400, "conversation_owner_unavailable")
        assert state.value.replace("_", " ") in told.json()["error"]["message"]


@pytest.mark.parametrize(
    "bound",
    [
        goal(REASONING),
        goal({"type": "reasoning", "summary": [{"type": "summary_text", "text": "thought"}]}),
        goal({"type": "message", "role": "user", "content": [FILE]}),
        goal({"type": "item_reference", "id": "msg_1"}),
        goal({"type": "web_search_call", "id": "ws_1", "status": "completed"}),
        goal({"type": "compaction", "encrypted_content": "gAAAAA"}),
        goal({"type": "compaction_trigger"}),
        goal({"type": "something_new"}),
        goal({**CALL, "something_new": 1}, OUTPUT),
        goal(CALL),
        goal(OUTPUT),
        goal(conversation="conv_1"),
        goal(prompt={"id": "pmpt_1"}),
        goal(background=True),
        goal(something_new=1),
        goal(tools=[{"type": "file_search", "vector_store_ids": ["vs_1"]}]),
        {**body(), "input": [{"type": "message", "role": "assistant", "content": GOAL}]},
        {**body(), "input": [CALL, {**OUTPUT, "output": GOAL}]},
        {**body(), "input": GOAL},
    ],
    ids=lambda bound: str(bound["input"])[-60:] if isinstance(bound, dict) else "",
)
async def test_what_is_not_proven_to_stand_for_itself_stays(bound: Json):
    async with stuck() as made:
        told = await made.answer(CODEX, bound, thread_id="t")
        assert_stuck(told)
        assert accounts(made) == []


async def test_a_continuation_does_not_leave_whatever_its_input_says():
    async with edge("ada", "bo") as made:
        client = await made.socket(thread_id="t")
        await client.frame(frame("one"))
        await client.has("response.completed")
        tie(made)
        await set_state(made, State.LIMITED)
        previous = client.frames[-1]["response"]["id"]
        await client.frame({"type": "response.create", **goal(), "previous_response_id": previous})
        await client.has("error")
        assert client.frames[-1]["error"]["code"] == "previous_response_not_found"
        assert accounts(made) == ["ada"]


@pytest.mark.parametrize("lasting", [True, False])
async def test_a_limit_that_is_nearly_over_is_waited_for(lasting: bool):
    async with edge("ada", "bo") as made:
        tie(made)
        limit(made, seconds=90 if lasting else 30)
        told = await made.answer(CODEX, goal(), thread_id="t")
        assert told.status == (200 if lasting else 503)
        assert accounts(made) == (["bo"] if lasting else [])


async def test_the_authority_ends_with_the_request():
    """The restart finds nobody to go to, so nothing has changed for the request after it."""
    async with stuck() as made:
        made.runtime.registry.mark_limited(2, time.time() + 2 * RESET, "usage limit reached")
        assert_stuck(await made.answer(CODEX, goal(), thread_id="t"))
        stored, _ = made.store.sessions[THREAD]
        assert (stored.account_id, stored.strength) == (1, Strength.HARD)
        before = made.store.accounts[2]
        await made.runtime.registry.flush()
        made.store.accounts[2] = replace(before, state=State.ACTIVE, state_until=None, revision=9)
        await made.runtime.registry.refresh()
        assert_stuck(await made.answer(CODEX, body("plain"), thread_id="t"))
        assert (await made.answer(CODEX, goal(), thread_id="t")).status == 200


async def test_the_authority_covers_a_reconnect_before_sending():
    async with stuck("ada", "bo", "cy", faults=("usage_limit:60000@bo",)) as made:
        assert (await made.answer(CODEX, goal(), thread_id="t")).status == 200
        assert accounts(made)[-1] == "cy"
        assert "ada" not in accounts(made)
        stored, _ = made.store.sessions[THREAD]
        assert stored.account_id == 3


async def test_a_restart_moves_in_the_request_whose_owner_refuses_it():
    async with edge("ada", "bo", faults=(f"usage_limit:{RESET:.0f}@ada",)) as made:
        tie(made)
        told = await made.answer(CODEX, goal(), thread_id="t")
        assert events(told.body)[-1]["type"] == "response.completed"
        assert set(accounts(made)) == {"ada", "bo"}
        (turn,) = await made.settled()
        assert [attempt["account"] for attempt in turn["attempts"]] == ["ada", "bo"]
        assert turn["attempts"][1]["left"] == "ada by goal restart"


async def test_a_live_lane_of_the_old_account_is_not_used_again():
    async with edge("ada", "bo") as made:
        await made.answer(CODEX, goal(), thread_id="t")
        await made.settled()
        assert [lane.key.account_id for lane in made.runtime.pool] == [1]
        tie(made)
        # Limited, not paused: its idle lanes stay open.
        await set_state(made, State.LIMITED)
        assert [lane.key.account_id for lane in made.runtime.pool] == [1]
        await made.answer(CODEX, goal(), thread_id="t")
        await made.settled()
        await set_state(made, State.ACTIVE)
        await made.answer(CODEX, goal(message("more")), thread_id="t")
        assert accounts(made) == ["ada", "bo", "bo"]
        assert [request.body.previous_response_id for request in made.upstream.observed.requests][1] is None
        assert [lane.key.account_id for lane in made.runtime.pool] == [2]


async def test_turn_state_of_the_same_text_keeps_its_owner():
    async with stuck() as made:
        turn_state = key(SessionKind.TURN_STATE, "t")
        tie(made, turn_state)
        assert (await made.answer(CODEX, goal(), thread_id="t")).status == 200
        assert made.runtime.sessions.find(turn_state, time.time()) is not None
        assert_stuck(await made.answer(CODEX, goal(), x_codex_turn_state="t"))
        assert accounts(made) == ["bo"]


async def test_a_restart_that_shows_turn_state_of_its_owner_keeps_it():
    async with stuck() as made:
        tie(made, key(SessionKind.TURN_STATE, "shown"))
        assert_stuck(await made.answer(CODEX, goal(), thread_id="t", x_codex_turn_state="shown"))


async def test_a_change_of_owner_at_the_same_moment_wins():
    async with stuck("ada", "bo", "cy") as made:

        async def moved_by_another() -> None:
            stored = Session(THREAD, 3, Strength.HARD, time.time())
            made.store.sessions[THREAD] = (stored, made.runtime.id)

        made.store.before_departure = moved_by_another
        assert (await made.answer(CODEX, goal(), thread_id="t")).status == 200
        assert accounts(made) == ["cy"]
        stored, _ = made.store.sessions[THREAD]
        assert (stored.account_id, stored.strength) == (3, Strength.HARD)


async def test_a_change_of_the_accounts_state_at_the_same_moment_wins():
    async with stuck() as made:

        async def resumed() -> None:
            await set_state(made, State.ACTIVE)

        made.store.before_departure = resumed
        assert (await made.answer(CODEX, goal(), thread_id="t")).status == 200
        assert accounts(made) == ["ada"]
        stored, _ = made.store.sessions[THREAD]
        assert (stored.account_id, stored.strength) == (1, Strength.HARD)


@pytest.mark.parametrize(("scope", "status"), [({1, 2}, 200), ({2}, 400), ({1}, 429)])
async def test_a_restart_stays_inside_the_scope_of_its_key(scope: set[int], status: int):
    """Neither does it leave an account that the key may not use, nor for one."""
    async with stuck() as made:
        made.store.keys = [replace(made.store.keys[0], accounts=frozenset(scope))]
        made.runtime.keys.replace(made.store.keys)
        assert (await made.answer(CODEX, goal(), thread_id="t")).status == status


async def test_a_free_request_whose_account_was_removed_goes_elsewhere():
    async with edge("ada", "bo") as made:
        tie(made, account=77)
        assert (await made.answer(CODEX, body("plain"), thread_id="t")).status == 200
