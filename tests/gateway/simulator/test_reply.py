"""What the model says to a request."""

from __future__ import annotations

import json

import pytest

from gateway.simulator.options import Options
from gateway.simulator.reply import (
    Call,
    Calls,
    Message,
    Refusal,
    Reply,
    Tool,
    Wanted,
    choose_reply,
    offered_tools,
    wanted_by,
)
from gateway.simulator.values import Json
from tests.gateway.simulator.clients import message

EXEC_COMMAND = {"exec_command": Tool("function_call")}
CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
WEATHER = {"weather": Tool("function_call", schema=CITY), "note": Tool("custom_tool_call")}
OSLO = Call("weather", WEATHER["weather"], '{"city":"Oslo"}')
ROME = Call("weather", WEATHER["weather"], '{"city":"Rome"}')
BOTH = message('Please\ncall: weather {"city":"Oslo"}\ncall: weather {"city":"Rome"}')


def reply_to(*items: Json, tools: dict[str, Tool] | None = None) -> Reply:
    return choose_reply(items, EXEC_COMMAND if tools is None else tools, Options(), "ada")


def test_a_command_is_called_with_the_arguments_of_the_tool_that_is_offered() -> None:
    asked = message("please run: echo hi\nthanks")

    calls = [
        reply_to(asked, tools={name: tool})
        for name, tool in {
            "exec_command": Tool("function_call"),
            "shell_command": Tool("function_call", "functions"),
            "shell": Tool("function_call"),
            "exec": Tool("custom_tool_call", "functions"),
        }.items()
    ]

    assert [call.input for call in calls if isinstance(call, Call)] == [
        '{"cmd":"echo hi"}',
        '{"command":"echo hi"}',
        '{"command":["bash","-lc","echo hi"]}',
        'text((await tools.exec_command({"cmd":"echo hi"})).output)',
    ]


def test_a_command_without_a_tool_or_in_an_older_message_is_not_called() -> None:
    assert reply_to(message("run: ls"), tools={}) == Message("Hello from ada.")
    assert reply_to(message("run: ls"), tools={"exec_command": Tool("custom_tool_call")}) == Message("Hello from ada.")
    assert reply_to(message("run: ls"), message("done", "assistant"), message("thanks")) == Message("Hello from ada.")
    assert reply_to(message("run: ls", "developer")) == Message("Hello from ada.")


def test_a_tool_output_is_quoted_without_the_lines_codex_puts_before_it() -> None:
    wrapped = "Chunk ID: 1\nWall time: 0.1 seconds\nOutput:\nhello\n"
    output = {"type": "function_call_output", "call_id": "c", "output": wrapped}
    parts = {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "bye"}]}

    assert reply_to(message("run: x"), output) == Message("The command printed: hello")
    assert reply_to(message("run: x"), parts) == Message("The command printed: bye")


def test_tools_are_found_in_the_list_in_items_and_in_namespaces() -> None:
    tools = [{"type": "function", "name": "shell"}, {"type": "web_search"}]
    inner = {"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "exec"}]}

    assert offered_tools(tools, [message("hi"), {"type": "additional_tools", "tools": [inner]}]) == {
        "shell": Tool("function_call"),
        "exec": Tool("custom_tool_call", "functions"),
    }


def answered(*items: Json, **wanted: object) -> Reply:
    return choose_reply(items, WEATHER, Options(), "ada", wanted_by(wanted))


def test_each_line_that_asks_for_a_tool_is_a_call() -> None:
    assert answered(message('call: weather {"city":"Oslo"}')) == OSLO
    assert answered(BOTH) == Calls((OSLO, ROME))
    assert answered(message("call: note buy milk")) == Call("note", WEATHER["note"], "buy milk")


def test_calls_come_one_by_one_if_the_request_wants_that() -> None:
    assert answered(BOTH, parallel_tool_calls=False) == OSLO


def test_tools_that_nobody_offers_or_wants_are_not_called() -> None:
    assert isinstance(answered(message("call: other {}")), Message)
    assert isinstance(answered(BOTH, tool_choice="none"), Message)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_a_tool_that_must_be_called_gets_arguments_that_fit_its_schema(choice: object) -> None:
    reply = answered(message("hi"), tool_choice=choice)
    assert isinstance(reply, Call)
    assert json.loads(reply.input) == {"city": "text", "days": 1}


def test_what_several_tools_gave_back_is_quoted_together() -> None:
    outputs: list[Json] = [
        {"type": "function_call_output", "call_id": str(number), "output": output}
        for number, output in enumerate(("rain", "sun"))
    ]
    assert answered(message("hi"), *outputs) == Message("The command printed: rain; sun")


def test_an_answer_comes_in_the_form_that_is_wanted() -> None:
    schema = {"type": "json_schema", "name": "place", "schema": CITY}
    assert answered(message("hi"), text={"format": schema}) == Message('{"city":"text","days":1}')
    assert answered(message("hi"), text={"format": {"type": "json_object"}}) == Message('{"text":"Hello from ada."}')


def test_the_model_declines_where_it_is_told_to() -> None:
    reply = choose_reply([message("hi")], {}, Options(refusal="I can not."), "ada", Wanted())
    assert reply == Refusal("I can not.")
