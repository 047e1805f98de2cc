"""Which requests start their goal anew and carry everything they need."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol.body import Body, parse_body
from gateway.protocol.goal import GOAL_MARKER, restarts_goal

Json = dict[str, Any]
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}", "status": "completed"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "done"}]}


def body(*items: Json, **members: object) -> Body:
    return parse_body(json.dumps({"model": "m", "input": list(items), **members}).encode())


def message(text: str = GOAL_MARKER, role: str = "user", **members: object) -> Json:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}], **members}


@pytest.mark.parametrize(
    "items",
    [
        [message()],
        [message("before"), message(f"\n {GOAL_MARKER}Ship it.", id="msg_1", status="completed")],
        [message(role="developer"), message("answer", role="assistant", phase="final")],
        [{"role": "user", "content": GOAL_MARKER}],
        [message(), CALL, OUTPUT],
        [message(), {"type": "custom_tool_call", "call_id": "c", "name": "x", "input": ""},
         {"type": "custom_tool_call_output", "call_id": "c", "output": ""}],
        [message(), {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "f"}]}],
    ],
)  # fmt: skip
def test_a_marked_request_of_known_parts_stands_for_itself(items: list[Json]) -> None:
    assert restarts_goal(body(*items, store=False, tools=[{"type": "web_search"}], reasoning={"effort": "low"}))


@pytest.mark.parametrize(
    "items",
    [
        [],
        [message("no goal")],
        [message(f"I quote {GOAL_MARKER}")],
        [message(role="assistant")],
        [message("no goal"), CALL, {**OUTPUT, "output": GOAL_MARKER}],
        [message(), {"type": "reasoning", "summary": []}],
        [message(), {"type": "agent_message", "content": "mail"}],
        [message(), {"type": "configuration_update"}],
        [message(), {"type": "compaction_trigger"}],
        [message(something_new=None)],
        [message(), CALL],
        [message(), OUTPUT],
        [message(), CALL, OUTPUT, OUTPUT],
        [message(), {**CALL, "caller": {"type": "program"}}, OUTPUT],
    ],
)
def test_anything_else_in_the_input_means_no(items: list[Json]) -> None:
    assert not restarts_goal(body(*items))


@pytest.mark.parametrize(
    "members",
    [
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"prompt": {"id": "p"}},
        {"background": False},
        {"something_new": None},
        {"tools": [{"type": "code_interpreter", "container": "cntr_1"}]},
        {"tools": [{"type": "something_new"}]},
    ],
)
def test_anything_else_beside_the_input_means_no(members: Json) -> None:
    assert not restarts_goal(body(message(), **members))


def test_a_mere_text_is_no_marked_message() -> None:
    assert not restarts_goal(parse_body(json.dumps({"model": "m", "input": GOAL_MARKER}).encode()))


FREE_ITEMS = [
    message("before", id="msg_1"),
    message("answer", role="assistant", phase="final"),
    {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "f"}]},
]
TYPES = {"message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"}
TYPES |= {"additional_tools"}
ids = st.text("abc", min_size=1, max_size=3)
# What an account holds, under the names that the API has for it.
REFERENCES = st.one_of(
    st.tuples(st.sampled_from(["file_id", "container_id", "vector_store_id", "encrypted_content"]), ids),
    st.tuples(st.sampled_from(["file_ids", "vector_store_ids"]), st.lists(ids, min_size=1)),
)
types = st.one_of(
    st.text(min_size=1).filter(lambda name: name not in TYPES),
    st.sampled_from(
        ["reasoning", "compaction", "item_reference", "web_search_call", "mcp_call", "Message", "message "]
    ),
    st.sampled_from([7, False, ["message"], {"type": "message"}]),
)


def among(items: list[Json], item: object, place: int) -> Body:
    position = place % (len(items) + 1)
    return body(*items[:position], item, *items[position:])


@settings(max_examples=50)
@given(st.lists(st.sampled_from(FREE_ITEMS), max_size=4), types, ids, st.integers(0, 9))
def test_an_item_of_any_type_that_is_not_known_to_stand_for_itself_means_no(
    others: list[Json], item_type: object, text: str, place: int
) -> None:
    assert restarts_goal(body(message(), *others))
    assert not restarts_goal(among([message(), *others], {**message(text), "type": item_type}, place))


@given(st.lists(st.sampled_from(FREE_ITEMS), max_size=4), REFERENCES, st.integers(0, 4), st.integers(0, 9))
def test_a_reference_to_what_an_account_holds_means_no_however_deep_it_is(
    others: list[Json], reference: tuple[str, object], depth: int, place: int
) -> None:
    value: object = dict([reference])
    for level in range(depth):
        value = [value] if level % 2 else {"inner": value}
    for member in ("content", "id", "status", "phase", "internal_chat_message_metadata_passthrough", "else"):
        item = {**message("text"), member: value}
        assert not restarts_goal(among([message(), *others], item, place)), member


@given(st.sampled_from(sorted(TYPES)), st.text(min_size=1), st.integers(0, 9))
def test_a_member_that_is_not_known_means_no(item_type: str, name: str, place: int) -> None:
    known = {"type", "id", "status", "internal_chat_message_metadata_passthrough", "role", "content", "phase"}
    known |= {"call_id", "name", "arguments", "namespace", "output", "input", "tools"}
    if name not in known:
        assert not restarts_goal(among([message()], {**message("text"), "type": item_type, name: None}, place))
