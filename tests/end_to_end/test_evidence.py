"""Where a request belongs by what is in it: all of that must agree, and then it counts for more than any name."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest

from accounts.quota import Quota, Window
from accounts.states import State
from gateway.continuity.rules import SessionKind, Strength
from gateway.continuity.sessions import Session
from gateway.simulator.seal import seal
from tests.end_to_end.test_hard_owners import THREAD, accounts, key, limit, set_state, tie
from tests.end_to_end.test_migration import THINKING, returned
from tests.gateway.consumers.asgi import CODEX, Edge, body, edge, events, frame

Json = dict[str, Any]


def with_file(file_id: str) -> Json:
    item = {"type": "message", "role": "user", "content": [{"type": "input_file", "file_id": file_id}]}
    return {**body(), "input": [item]}


def sealed_by(*names: str) -> Json:
    items = [{"type": "reasoning", "summary": [], "encrypted_content": seal(name, "thought")} for name in names]
    return {**body(), "input": [*items, *body()["input"]]}


async def asked(made: Edge, request: Json, **headers: str) -> str:
    """The account that answered, or the code of the refusal."""
    told = await made.answer(CODEX, request, **headers)
    await made.settled()
    if told.status != 200:
        return str(told.json()["error"]["code"] or told.json()["error"]["type"])
    assert events(told.body)[-1]["type"] == "response.completed"
    return accounts(made)[-1]


@pytest.mark.parametrize("kind", [SessionKind.FILE, SessionKind.CONVERSATION])
async def test_what_an_account_was_given_first_is_its_own_whatever_the_conversation_is_called(kind: SessionKind):
    wanted = with_file("file_1") if kind is SessionKind.FILE else body(conversation="conv_1")
    async with edge("ada", "bo") as made:
        limit(made, 1)
        assert await asked(made, wanted, thread_id="one") == "bo"
        stored = [session for session, _ in made.store.sessions.values() if session.key.kind is kind]
        assert [(session.account_id, session.strength) for session in stored] == [(2, Strength.HARD)]
        await set_state(made, State.ACTIVE)
        # Another conversation, which lives on the other account; the name proves nothing.
        tie(made, key(SessionKind.THREAD, "two"), Strength.SOFT, 1)
        assert await asked(made, wanted, thread_id="two") == "bo"
        assert await asked(made, wanted) == "bo"


async def test_encrypted_content_goes_to_the_account_that_made_it():
    async with edge("ada", "bo") as made:
        limit(made, 1)
        told = await made.answer(CODEX, body(model=THINKING), thread_id="t")
        await made.settled()
        await set_state(made, State.ACTIVE)
        history = {**body(), "input": [*body()["input"], *returned(told), *body("two")["input"]]}
        assert await asked(made, history) == "bo"
        assert await asked(made, history, thread_id="another") == "bo"


async def test_an_account_that_has_thought_owns_its_conversation_from_then_on():
    """The client's next request may be a delta, which says nothing of what the account keeps."""
    async with edge("ada", "bo") as made:
        client = await made.socket(thread_id="t")
        await client.frame(frame(model=THINKING))
        await client.has("response.completed")
        await made.settled()
        stored, _ = made.store.sessions[THREAD]
        assert (stored.account_id, stored.strength) == (1, Strength.HARD)


async def test_a_continuation_alone_ties_a_conversation_to_its_lane_only():
    async with edge("ada", "bo") as made:
        client = await made.socket(thread_id="t")
        await client.frame(frame())
        await client.has("response.completed")
        await client.frame(frame(previous_response_id=client.frames[-1]["response"]["id"]))
        await client.has("response.completed", 2)
        await made.settled()
        stored, _ = made.store.sessions[THREAD]
        assert (stored.account_id, stored.strength) == (1, Strength.SOFT)


@pytest.mark.parametrize(
    ("request_", "headers"),
    [
        (with_file("file_of_bo"), {"x_codex_turn_state": "of_ada"}),
        ({**with_file("file_of_bo"), "conversation": "conv_of_ada"}, {}),
        (body(conversation="conv_of_ada"), {"x_codex_turn_state": "of_bo"}),
        (sealed_by("ada", "bo"), {}),
        ({**with_file("file_of_bo"), "input": [*with_file("file_of_bo")["input"], *sealed_by("ada")["input"]]}, {}),
        ({**with_file("file_of_bo"), "input": [*with_file("file_of_bo")["input"], *with_file("new")["input"]]},
         {"thread_id": "of_ada"}),
    ],
)  # fmt: skip
async def test_pieces_that_disagree_are_refused_before_anything_is_sent(request_: Json, headers: dict[str, str]):
    async with edge("ada", "bo") as made:
        tie(made, key(SessionKind.FILE, "file_of_bo"), account=2)
        tie(made, key(SessionKind.CONVERSATION, "conv_of_ada"), account=1)
        tie(made, key(SessionKind.TURN_STATE, "of_ada"), account=1)
        tie(made, key(SessionKind.TURN_STATE, "of_bo"), account=2)
        tie(made, key(SessionKind.THREAD, "of_ada"), account=1)
        known = {**with_file("file_of_bo"), "input": [*with_file("file_of_bo")["input"], *sealed_by("bo")["input"]]}
        assert await asked(made, known) == "bo"
        assert await asked(made, {**sealed_by("ada"), "conversation": "conv_of_ada"}) == "ada"
        assert await asked(made, request_, **headers) == "continuity_owner_conflict"
        assert accounts(made) == ["bo", "ada"]
        turn = (await made.settled())[-1]
        assert (turn["outcome"], turn["cause"], turn["sent_ms"]) == ("refused", "owner_unavailable", None)


@pytest.mark.parametrize("known", [None, Strength.SOFT])
async def test_a_prewarm_goes_where_another_process_has_just_had_the_conversation(known: Strength | None):
    """It says nothing of what the conversation needs, and the delta after it brings all of that."""
    async with edge("ada", "bo") as made:
        if known is not None:
            tie(made, THREAD, known, account=1)
        made.store.sessions[THREAD] = (Session(THREAD, 2, Strength.HARD, time.time()), uuid.uuid4())
        client = await made.socket(thread_id="t")
        await client.frame(frame(generate=False))
        await client.has("response.completed")
        previous = client.frames[-1]["response"]["id"]
        await client.frame({"type": "response.create", **sealed_by("bo"), "previous_response_id": previous})
        await client.has("response.completed", 2)
        assert accounts(made) == ["bo", "bo"]


async def test_turn_state_that_nobody_here_knows_is_not_that_of_an_account_which_never_saw_it():
    """Its process died before it could write who had issued it, and the turn went on at another account."""
    async with edge("ada", "bo") as made:
        tie(made, THREAD, Strength.SOFT, account=1)
        limit(made, 1)
        for _ in range(2):
            assert await asked(made, body(), thread_id="t", x_codex_turn_state="of_ada") == "bo"
        shown = [request.body.turn_state for request in made.upstream.observed.requests if request.body is not None]
        assert shown == [None, None]
        stored, _ = made.store.sessions[key(SessionKind.TURN_STATE, "of_ada")]
        assert (stored.account_id, stored.strength) == (1, Strength.LEFT)


async def test_a_continuation_must_agree_with_the_rest_of_its_request():
    async with edge("ada", "bo") as made:
        tie(made, key(SessionKind.FILE, "file_of_bo"), account=2)
        client = await made.socket(thread_id="t")
        await client.frame(frame())
        await client.has("response.completed")
        previous = client.frames[-1]["response"]["id"]
        delta = {"type": "response.create", **with_file("file_of_bo"), "previous_response_id": previous}
        await client.frame(delta)
        await client.has("error")
        assert client.frames[-1]["error"]["code"] == "continuity_owner_conflict"
        assert accounts(made) == ["ada"]


async def test_turn_state_that_was_left_behind_does_not_hold_up_the_turn_that_left_it():
    """Codex keeps the first turn state of a turn, and goes on showing it after the turn has moved."""
    async with edge("ada", "bo") as made:
        client = await made.socket(thread_id="t")
        await client.frame(frame())
        await client.has("response.completed")
        state = next(each["headers"] for each in client.frames if each["type"] == "response.metadata")
        echoed = {"client_metadata": {"x-codex-turn-state": state["x-codex-turn-state"]}}
        limit(made)
        await client.frame(frame("two", **echoed))
        await client.has("response.completed", 2)
        previous = client.frames[-1]["response"]["id"]
        await client.frame(frame("three", previous_response_id=previous, **echoed))
        await client.has("response.completed", 3)
        await made.settled()
        await set_state(made, State.ACTIVE)
        await client.frame(frame("four", **echoed))
        await client.has("response.completed", 4)
        assert accounts(made) == ["ada", "bo", "bo", "bo"]
        shown = [request.body.turn_state for request in made.upstream.observed.requests if request.body is not None]
        assert shown == [None] * 4
        left = [session for session, _ in made.store.sessions.values() if session.strength is Strength.LEFT]
        assert [session.account_id for session in left] == [1]


async def test_a_soft_conversation_spills_over_when_its_account_is_only_full_and_comes_back():
    async with edge("ada", "bo", streams=1, faults=("slow:0.2#1",)) as made:
        tie(made, strength=Strength.SOFT)
        first = made.request(CODEX, body("one"), thread_id="other")
        await first.until(lambda: accounts(made) == ["ada"])
        assert (await made.answer(CODEX, body("two"), thread_id="t")).status == 200
        assert accounts(made) == ["ada", "bo"]
        await first.ended()
        await made.settled()
        stored, _ = made.store.sessions[THREAD]
        assert (stored.account_id, stored.strength) == (1, Strength.SOFT)
        assert await asked(made, body("three"), thread_id="t") == "ada"


async def test_a_turn_that_asks_for_encrypted_reasoning_takes_its_conversation_along_before_it_is_sent():
    """Its client may be at another replica with that reasoning before the turn's end is stored."""
    async with edge("ada", "bo", streams=1, faults=("slow:0.2",)) as made:
        tie(made, strength=Strength.SOFT)
        first = made.request(CODEX, body("one"), thread_id="other")
        await first.until(lambda: accounts(made) == ["ada"])
        second = made.request(CODEX, body("two", include=["reasoning.encrypted_content"]), thread_id="t")
        await second.until(lambda: accounts(made) == ["ada", "bo"])
        stored, _ = made.store.sessions[THREAD]
        assert stored.account_id == 2
        await first.ended()
        await second.ended()


async def test_a_spilled_turn_in_which_the_other_account_thought_takes_the_conversation_along():
    async with edge("ada", "bo", streams=1, faults=("slow:0.2#1",)) as made:
        tie(made, strength=Strength.SOFT)
        first = made.request(CODEX, body("one"), thread_id="other")
        await first.until(lambda: accounts(made) == ["ada"])
        told = await made.answer(CODEX, body("two", model=THINKING), thread_id="t")
        await first.ended()
        history = {**body(model=THINKING), "input": [*body("two")["input"], *returned(told), *body("x")["input"]]}
        assert await asked(made, history, thread_id="t") == "bo"


@pytest.mark.parametrize(("used", "other", "goes_to"), [(96, 10, "bo"), (90, 10, "ada"), (96, 90, "ada")])
async def test_a_soft_conversation_leaves_an_account_that_is_clearly_worse(used: float, other: float, goes_to: str):
    async with edge("ada", "bo") as made:
        tie(made, strength=Strength.SOFT)
        for number, percent in ((1, used), (2, other)):
            window = Window(time.time(), percent)
            made.runtime.engine.health.quotas.observe(number, Quota(windows={"codex/primary": window}))
        assert await asked(made, body(), thread_id="t") == goes_to
