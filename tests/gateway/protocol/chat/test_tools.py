"""The tools of a chat and their choice, as a response has them."""

from __future__ import annotations

import pytest

from gateway.protocol.chat.request import translate
from tests.gateway.protocol.chat.asking import Json, chat, refusal, response


def tools(*given: Json) -> list[Json]:
    return list(response(tools=list(given))["tools"])


def test_a_function_is_flat_and_says_that_it_is_not_strict():
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    function = {"name": "weather", "description": "Tells it.", "parameters": schema}
    assert tools({"type": "function", "function": function}) == [
        {"type": "function", "name": "weather", "description": "Tells it.", "parameters": schema, "strict": False}
    ]


@pytest.mark.parametrize(("given", "told"), [(True, True), (False, False), (None, False)])
def test_what_a_chat_does_not_call_strict_is_not_strict(given: bool | None, told: bool):
    (tool,) = tools({"type": "function", "function": {"name": "f", "strict": given}})
    assert tool["strict"] is told


def test_schemas_keep_their_bytes():
    raw = chat().replace(
        b'"messages"', b'"tools":[{"type":"function","function":{"name":"f","parameters":{ "n" : 1.0 }}}],"messages"'
    )
    assert b'"parameters":{ "n" : 1.0 }' in translate(raw).body


def test_a_custom_tool_keeps_its_grammar():
    grammar = {"definition": "a+", "syntax": "regex"}
    given = {"name": "shell", "description": "Runs.", "format": {"type": "grammar", "grammar": grammar}}
    assert tools({"type": "custom", "custom": given}) == [
        {"type": "custom", "name": "shell", "description": "Runs.", "format": {"type": "grammar", **grammar}}
    ]
    assert tools({"type": "custom", "custom": {"name": "s", "format": {"type": "text"}}}) == [
        {"type": "custom", "name": "s", "format": {"type": "text"}}
    ]
    assert tools({"type": "custom", "custom": {"name": "s"}}) == [{"type": "custom", "name": "s"}]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("none", "none"),
        ("auto", "auto"),
        ("required", "required"),
        ({"type": "function", "function": {"name": "f"}}, {"type": "function", "name": "f"}),
        ({"type": "custom", "custom": {"name": "c"}}, {"type": "custom", "name": "c"}),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
                {"type": "function", "function": {"name": "f"}}, {"type": "custom", "custom": {"name": "c"}}]}},
            {"type": "allowed_tools", "mode": "auto", "tools": [
                {"type": "function", "name": "f"}, {"type": "custom", "name": "c"}]},
        ),
    ],
)  # fmt: skip
def test_a_choice_names_tools_as_a_response_does(given: object, told: object):
    assert response(tool_choice=given)["tool_choice"] == told


@pytest.mark.parametrize("given", ["any", {"type": "web_search"}, {"type": "function"}, 5])
def test_a_choice_that_is_none_is_refused(given: object):
    code, place = refusal(tool_choice=given)
    assert code == "invalid_value"
    assert place is not None
    assert place.startswith("tool_choice")


@pytest.mark.parametrize("tool", [{"type": "web_search"}, {"type": "function", "function": {"name": "f", "x": 1}}, {}])
def test_a_tool_that_a_chat_does_not_have_is_refused(tool: Json):
    code, place = refusal(tools=[tool])
    assert code in ("invalid_value", "unknown_parameter")
    assert place is not None
    assert place.startswith("tools")
