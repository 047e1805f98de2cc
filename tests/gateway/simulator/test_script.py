import json

import pytest

from gateway.simulator.envelope import Envelope, Event
from gateway.simulator.options import Options
from gateway.simulator.reply import Call, Message, Reply, Tool
from gateway.simulator.script import Script, cut, failed, incomplete, text_delta, write_script
from gateway.simulator.seal import owner

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
        "input_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 0},
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


def test_function_and_custom_calls_stream_their_input() -> None:
    for tool, stem, member in (
        (Tool("function_call", "functions"), "response.function_call_arguments", "arguments"),
        (Tool("custom_tool_call"), "response.custom_tool_call_input", "input"),
    ):
        answer = script(Call("exec_command", tool, "{}"))

        assert [event.type for event in answer.events[2:7]] == [
            "response.output_item.added",
            f"{stem}.delta",
            f"{stem}.delta",
            f"{stem}.done",
            "response.output_item.done",
        ]
        assert answer.output[0]["type"] == tool.type
        assert answer.output[0][member] == "{}"
        assert answer.output[0].get("namespace") == tool.namespace


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
