import json

import pytest

from gateway.simulator.options import Options
from gateway.simulator.script import (
    Call,
    Envelope,
    Event,
    Message,
    Reply,
    Script,
    Tool,
    choose_reply,
    cut,
    failed,
    incomplete,
    offered_tools,
    text_delta,
    write_script,
)
from gateway.simulator.seal import owner
from gateway.simulator.values import Json
from tests.gateway.simulator.clients import message

ENVELOPE = Envelope("resp_1", "1", "ada", "gpt-5.5", 1_796_000_000, input_tokens=30, cached_tokens=20)
EXEC_COMMAND = {"exec_command": Tool("function_call")}
MESSAGE_EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


def decoded(event: Event, number: int = 0) -> dict[str, object]:
    value = json.loads(event.payload(number))
    assert isinstance(value, dict)
    return value


def script(reply: Reply, options: Options | None = None) -> Script:
    return write_script(reply, ENVELOPE, options or Options())


def reply_to(*items: Json, tools: dict[str, Tool] | None = None) -> Reply:
    return choose_reply(items, EXEC_COMMAND if tools is None else tools, Options(), "ada")


def output_of(answer: Script) -> list[dict[str, object]]:
    response = decoded(answer.events[-1])["response"]
    assert isinstance(response, dict)
    return list(response["output"])


def test_a_message_runs_through_its_whole_life_cycle() -> None:
    answer = script(Message("Hello from ada."))

    assert [event.type for event in answer.events] == MESSAGE_EVENTS
    assert "".join(str(decoded(event)["delta"]) for event in answer.events[4:7]) == "Hello from ada."
    assert output_of(answer) == list(answer.output)


def test_type_and_sequence_number_come_first_in_the_bytes() -> None:
    first = script(Message("hi")).events[0]

    assert first.payload(7).startswith(b'{"type":"response.created","sequence_number":7,"response":{"id":"resp_1"')


def test_the_same_request_gives_the_same_events() -> None:
    assert script(Message("hi"), Options(reasoning=True)) == script(Message("hi"), Options(reasoning=True))


def test_usage_counts_cached_input_and_reasoning() -> None:
    response = decoded(script(Message("one two"), Options(reasoning=True)).events[-1])["response"]

    assert isinstance(response, dict)
    assert response["usage"] == {
        "input_tokens": 30,
        "input_tokens_details": {"cached_tokens": 20},
        "output_tokens": 18,
        "output_tokens_details": {"reasoning_tokens": 16},
        "total_tokens": 48,
    }


def test_reasoning_comes_first_and_is_sealed_for_the_account() -> None:
    answer = script(Message("hi"), Options(reasoning=True))

    reasoning, said = answer.output

    assert reasoning["type"] == "reasoning"
    assert owner(str(reasoning["encrypted_content"])) == "ada"
    assert said["type"] == "message"
    assert decoded(answer.events[4])["output_index"] == 1


def test_an_answer_without_output_is_created_and_completed() -> None:
    answer = script(None, Options(reasoning=True))

    assert [event.type for event in answer.events] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]
    assert answer.output == ()


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


def test_function_and_custom_calls_stream_their_input() -> None:
    for tool, stem, member in (
        (Tool("function_call", "functions"), "response.function_call_arguments", "arguments"),
        (Tool("custom_tool_call"), "response.custom_tool_call_input", "input"),
    ):
        answer = script(Call("exec_command", tool, "{}"))

        assert [event.type for event in answer.events[2:6]] == [
            "response.output_item.added",
            f"{stem}.delta",
            f"{stem}.done",
            "response.output_item.done",
        ]
        assert answer.output[0]["type"] == tool.type
        assert answer.output[0][member] == "{}"
        assert answer.output[0].get("namespace") == tool.namespace


def test_tools_are_found_in_the_list_in_items_and_in_namespaces() -> None:
    tools = [{"type": "function", "name": "shell"}, {"type": "web_search"}]
    inner = {"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "exec"}]}

    assert offered_tools(tools, [message("hi"), {"type": "additional_tools", "tools": [inner]}]) == {
        "shell": Tool("function_call"),
        "exec": Tool("custom_tool_call", "functions"),
    }


@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_a_text_is_cut_into_as_many_pieces_as_asked_for(count: int) -> None:
    pieces = cut("one two  three", count, 0)

    assert len(pieces) == count
    assert "".join(pieces).startswith("one two  three")


def test_pieces_are_padded_to_their_size_in_bytes() -> None:
    assert [len(piece.encode()) for piece in cut("é", 3, 10)] == [10, 10, 10]


def test_a_long_text_is_cut_into_few_pieces_by_default() -> None:
    text = "word " * 500

    assert len(cut(text, None, 0)) == 20
    assert "".join(cut(text, None, 0)) == text


def test_the_other_terminals_carry_the_response() -> None:
    answer = script(Message("hi"))

    failure = decoded(failed(ENVELOPE, "server_error", "It broke."))["response"]
    partial = decoded(incomplete(answer, "max_output_tokens"))["response"]

    assert isinstance(failure, dict)
    assert failure["status"] == "failed"
    assert failure["error"] == {"code": "server_error", "message": "It broke."}
    assert isinstance(partial, dict)
    assert partial["incomplete_details"] == {"reason": "max_output_tokens"}
    assert partial["usage"]["output_tokens"] > 0
    assert partial["output"][0]["status"] == "incomplete"


def test_a_big_delta_has_its_size() -> None:
    assert decoded(text_delta(ENVELOPE, 1000))["delta"] == "x" * 1000
