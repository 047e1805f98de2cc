"""A full request is made into a delta only when it provably extends what a lane holds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.body import Body, parse_body
from gateway.protocol.chain import Chain, chain_of, new_items

Json = dict[str, Any]


def body(items: object, **members: object) -> Body:
    return parse_body(json.dumps({"model": "gpt-5.5", "store": False, "input": items, **members}).encode())


def message(text: str, role: str = "user", **members: object) -> Json:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}], **members}


def call(call_id: str, kind: str = "function_call") -> Json:
    return {"type": kind, "id": f"fc_{call_id}", "call_id": call_id, "name": "shell", "status": "completed"}


def output(call_id: str, kind: str = "function_call_output") -> Json:
    return {"type": kind, "call_id": call_id, "output": "ok"}


def raw(items: list[Json]) -> list[bytes]:
    return [json.dumps(item).encode() for item in items]


def made(first: Body, returned: list[Json]) -> Chain:
    chain = chain_of(first, "resp_1", raw(returned))
    assert chain is not None
    return chain


def news(chain: Chain, second: Body) -> list[Json] | None:
    items = new_items(chain, second)
    return None if items is None else [json.loads(bytes(item)) for item in items]


ASKED = [message("one")]
SAID = [message("two", "assistant", id="msg_1", status="completed")]
NEXT = [message("three")]


def test_what_follows_the_returned_items_is_new():
    chain = made(body(ASKED), SAID)
    assert chain.response_id == "resp_1"
    assert news(chain, body([*ASKED, *SAID, *NEXT])) == NEXT


def test_a_response_without_output_can_be_gone_on_from():
    assert news(made(body(ASKED), []), body([*ASKED, *NEXT])) == NEXT


def test_new_items_are_the_clients_own_bytes():
    chain = made(body(ASKED), SAID)
    text = b'{ "role":"user",\t"type":"message","content":"\\u00e9" }'
    second = json.dumps({"model": "gpt-5.5", "store": False, "input": [*ASKED, *SAID]}).encode()
    second = second.removesuffix(b"]}") + b", " + text + b"]}"
    items = new_items(chain, parse_body(second))
    assert items is not None
    assert [bytes(item) for item in items] == [text]


@pytest.mark.parametrize(
    "echoed",
    [
        {name: SAID[0][name] for name in reversed(SAID[0])},
        {name: value for name, value in SAID[0].items() if name != "status"},
        {**SAID[0], "status": "in_progress"},
        {**SAID[0], "phase": None},
    ],
    ids=["another order", "no status", "another status", "a null member"],
)
def test_a_returned_item_may_come_back_in_another_order_and_with_another_status(echoed: Json):
    assert news(made(body(ASKED), SAID), body([*ASKED, echoed, *NEXT])) == NEXT


@pytest.mark.parametrize(
    "items",
    [
        [*ASKED, *SAID],
        ASKED,
        [],
        NEXT,
        [message("another"), *SAID, *NEXT],
        [*ASKED, *NEXT],
        [*SAID, *ASKED, *NEXT],
        [*ASKED, *ASKED, *SAID, *NEXT],
        [*ASKED, {**SAID[0], "id": "msg_2"}, *NEXT],
        [*ASKED, {**SAID[0], "phase": "commentary"}, *NEXT],
        [*ASKED, message("two!", "assistant", id="msg_1"), *NEXT],
        [{name: ASKED[0][name] for name in reversed(ASKED[0])}, *SAID, *NEXT],
        [{**ASKED[0], "status": "completed"}, *SAID, *NEXT],
    ],
    ids=[
        "nothing new",
        "shorter",
        "empty",
        "only new",
        "another question",
        "the answer left out",
        "another order",
        "a question twice",
        "another id",
        "one member more",
        "another answer",
        "the question in another order",
        "the question with a status",
    ],
)
def test_a_history_that_is_not_the_same_is_no_extension(items: list[Json]):
    assert news(made(body(ASKED), SAID), body(items)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "gpt-5.6"},
        {"reasoning": {"effort": "high"}},
        {"tools": [{"type": "function", "name": "f"}]},
        {"instructions": "be brief"},
        {"text": {"format": {"type": "text"}}},
        {"prompt_cache_key": "k"},
        {"service_tier": "priority"},
        {"include": ["reasoning.encrypted_content"]},
        {"a_member_of_tomorrow": 1},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_any_other_setting_needs_the_full_request(changes: Json):
    chain = made(body(ASKED), SAID)
    assert news(chain, body([*ASKED, *SAID, *NEXT], **changes)) is None
    assert news(made(body(ASKED, **changes), SAID), body([*ASKED, *SAID, *NEXT], **changes)) == NEXT
    assert news(made(body(ASKED, **changes), SAID), body([*ASKED, *SAID, *NEXT])) is None


def test_what_says_nothing_about_the_response_may_differ():
    chain = made(body(ASKED, client_metadata={"turn_id": "1"}, metadata={"a": "1"}, stream=True), SAID)
    second = body([*ASKED, *SAID, *NEXT], client_metadata={"turn_id": "2"}, type="response.create", stream=False)
    assert news(chain, second) == NEXT


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
def test_every_call_that_was_returned_must_be_answered_by_what_is_new(kind: str):
    calls = [call("c1", kind), call("c2", kind)]
    chain = made(body(ASKED), calls)
    answers = [output("c1", f"{kind}_output"), output("c2", f"{kind}_output")]
    assert chain.calls == {"c1", "c2"}
    assert news(chain, body([*ASKED, *calls, *answers])) == answers
    assert news(chain, body([*ASKED, *calls, answers[0]])) is None
    assert news(chain, body([*ASKED, *calls, *NEXT])) is None


def test_an_answer_of_another_kind_is_none():
    calls = [call("c1", "custom_tool_call")]
    assert news(made(body(ASKED), calls), body([*ASKED, *calls, output("c1")])) is None


def test_an_answer_without_its_call_is_no_extension():
    assert news(made(body(ASKED), SAID), body([*ASKED, *SAID, output("c9")])) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"store": True},
        {"store": None},
        {"previous_response_id": "resp_0"},
        {"conversation": "conv_1"},
        {"input": "text"},
        {"input": None},
    ],
    ids=["stored", "stored by default", "a delta", "a conversation", "plain text", "no input"],
)
def test_a_request_that_is_kept_elsewhere_or_has_no_list_is_neither_beginning_nor_extension(changes: Json):
    assert chain_of(body(**{"items": ASKED, **changes}), "resp_1", raw(SAID)) is None
    assert news(made(body(ASKED), SAID), body(**{"items": [*ASKED, *SAID, *NEXT], **changes})) is None


@pytest.mark.parametrize("broken", [b"", b"5", b"null", b"[]", b"{", b'"text"', b'{"a":"\xff"}'])
def test_an_item_that_an_upstream_sent_broken_cannot_be_gone_on_from(broken: bytes):
    assert chain_of(body(ASKED), "resp_1", [*raw(SAID), broken]) is None


@pytest.mark.parametrize("odd", ["text", 5, None, []])
def test_an_item_that_is_no_object_is_no_extension_and_no_error(odd: object):
    chain = made(body(ASKED), SAID)
    assert news(chain, body([*ASKED, *SAID, odd])) is None
    assert news(chain, body([*ASKED, odd, *NEXT])) is None
    assert news(chain, body([odd, *SAID, *NEXT])) is None


# Whatever the conversation

TEXT = st.text(max_size=5)
MESSAGES = st.builds(message, TEXT, st.sampled_from(["user", "developer", "assistant"]))
REASONING = st.builds(lambda text: {"type": "reasoning", "id": text, "summary": []}, TEXT)


@dataclass
class Conversation:
    """A first request, what came back, and what the client adds to it."""

    asked: list[Json]
    returned: list[Json]
    added: list[Json]


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    asked = draw(st.lists(MESSAGES, max_size=4))
    calls = [call(f"c{number}") for number in range(draw(st.integers(0, 2)))]
    returned = draw(st.lists(MESSAGES | REASONING, max_size=3)) + calls
    answers = [output(each["call_id"]) for each in calls]
    added = answers + draw(st.lists(MESSAGES, min_size=0 if answers else 1, max_size=3))
    return Conversation(asked, returned, added)


def echo(item: Json, draw: st.DrawFn) -> Json:
    """An item as a client may send it back: in another order, with or without its status."""
    names = draw(st.permutations([name for name in item if name != "status" or draw(st.booleans())]))
    return {name: item[name] for name in names}


@given(st.data(), conversations())
def test_every_extension_is_found_and_only_what_was_added_is_new(data: st.DataObject, talk: Conversation):
    echoed = [echo(item, data.draw) for item in talk.returned]
    chain = made(body(talk.asked), talk.returned)
    assert news(chain, body(talk.asked + echoed + talk.added)) == talk.added


def without_labels(item: Json) -> Json:
    return {name: value for name, value in item.items() if name != "status" and value is not None}


@given(conversations(), conversations())
def test_an_unrelated_request_is_taken_for_an_extension_only_if_it_is_one(talk: Conversation, other: Conversation):
    items = other.asked + other.returned + other.added
    chain = made(body(talk.asked), talk.returned)
    found = news(chain, body(items))
    start = len(talk.asked) + len(talk.returned)
    if found is not None:
        assert items[: len(talk.asked)] == talk.asked
        echoed = items[len(talk.asked) : start]
        assert list(map(without_labels, echoed)) == list(map(without_labels, talk.returned))
        assert found == items[start:] != []
        assert {item["call_id"] for item in found if item["type"] == "function_call_output"} >= chain.calls


@given(conversations(), st.data())
def test_any_single_change_of_the_history_needs_the_full_request(talk: Conversation, data: st.DataObject):
    history = talk.asked + talk.returned
    if not history:
        return
    place = data.draw(st.integers(0, len(history) - 1))
    how = data.draw(st.sampled_from(["drop", "alter", "repeat"]))
    changed = list(history)
    if how == "drop":
        del changed[place]
    elif how == "repeat":
        changed.insert(place, changed[place])
    else:
        changed[place] = {**changed[place], "altered": True}
    found = news(made(body(talk.asked), talk.returned), body(changed + talk.added))
    # To drop or repeat one of several equal items may give the same beginning again.
    assert found is None or (changed + talk.added)[: len(history)] == history
