"""The messages of a chat become input items, every part of them, or the request is refused."""

from __future__ import annotations

import pytest

from gateway.protocol.body import parse_body
from gateway.protocol.chat.request import translate
from tests.gateway.protocol.chat.asking import HI, Json, chat, refusal, response

CALL: Json = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
CUSTOM: Json = {"id": "call_2", "type": "custom", "custom": {"name": "shell", "input": "ls"}}
CALLS: Json = {"role": "assistant", "content": None, "tool_calls": [CALL, CUSTOM]}


def said(content: object, **members: object) -> Json:
    return {"role": "user", "content": content, **members}


def test_a_plain_message_stays_plain():
    assert response(HI)["input"] == [{"type": "message", "role": "user", "content": "hi"}]


def test_system_messages_at_the_beginning_become_the_instructions():
    made = response(
        {"role": "system", "content": "Be short."},
        {"role": "system", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}]},
        HI,
    )
    assert made["instructions"] == "Be short.\n\nBe kind."
    assert len(made["input"]) == 1


def test_later_system_messages_and_developers_keep_their_place():
    made = response(HI, {"role": "system", "content": "Now in French."}, {"role": "developer", "content": "And short."})
    assert "instructions" not in made
    assert [item["role"] for item in made["input"]] == ["user", "system", "developer"]


def test_a_system_message_with_a_cache_mark_stays_a_message():
    part = {"type": "text", "text": "Be short.", "prompt_cache_breakpoint": {"mode": "explicit"}}
    (item, _) = response({"role": "system", "content": [part]}, HI)["input"]
    assert item["content"] == [
        {"type": "input_text", "text": "Be short.", "prompt_cache_breakpoint": {"mode": "explicit"}}
    ]


def test_text_images_and_files_become_the_parts_of_an_input():
    (item,) = response(
        said(
            [
                {"type": "text", "text": "Look:"},
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}},
                {"type": "file", "file": {"file_id": "file_1"}},
            ]
        )
    )["input"]
    assert item["content"] == [
        {"type": "input_text", "text": "Look:"},
        {"type": "input_image", "image_url": "https://example.org/a.png", "detail": "low"},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"},
        {"type": "input_file", "file_id": "file_1"},
    ]


def test_a_file_of_an_account_binds_the_request_and_inline_content_does_not():
    def is_bound(part: Json) -> bool:
        return parse_body(translate(chat(said([part]))).body).is_bound

    assert is_bound({"type": "file", "file": {"file_id": "file_1"}})
    assert not is_bound({"type": "file", "file": {"filename": "a", "file_data": "AAAA"}})
    assert not is_bound({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}})


def test_what_the_model_said_comes_back_as_what_it_said():
    spoken = response(HI, {"role": "assistant", "content": "Hello."}, HI)["input"][1]
    assert spoken == {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]}
    parts = [{"type": "text", "text": "No:"}, {"type": "refusal", "refusal": "I can not."}]
    assert response({"role": "assistant", "content": parts, "refusal": "Never."})["input"][0]["content"] == [
        {"type": "output_text", "text": "No:"},
        {"type": "refusal", "refusal": "I can not."},
        {"type": "refusal", "refusal": "Never."},
    ]


def test_calls_and_what_the_tools_gave_back_are_items_of_their_kind():
    made = response(
        HI,
        {**CALLS, "content": "Let me look."},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "a.txt"}]},
    )["input"]
    assert made[1]["content"] == [{"type": "output_text", "text": "Let me look."}]
    assert made[2:] == [
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city":"Oslo"}'},
        {"type": "custom_tool_call", "call_id": "call_2", "name": "shell", "input": "ls"},
        {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "a.txt"}]},
    ]


@pytest.mark.parametrize("content", [None, "", []])
def test_a_message_that_only_calls_says_nothing(content: object):
    (item, *_) = response({**CALLS, "content": content})["input"]
    assert item["type"] == "function_call"


def test_a_message_that_an_sdk_gives_out_can_be_sent_back_as_it_is():
    """All members that a completion's message has, those without a value included."""
    message = {
        "role": "assistant",
        "content": "Hello.",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert response(message)["input"] == response({"role": "assistant", "content": "Hello."})["input"]


def test_the_name_of_a_tools_message_may_repeat_the_tools():
    output = {"role": "tool", "tool_call_id": "call_1", "content": "rain", "name": "weather"}
    assert response(CALLS, output)["input"][-1]["output"] == "rain"
    assert refusal(CALLS, {**output, "name": "other"}) == ("unsupported_parameter", "messages[1].name")


@pytest.mark.parametrize(
    ("message", "code", "place"),
    [
        (said("hi", name="ada"), "unsupported_parameter", "messages[1].name"),
        (said([{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]), "unsupported_parameter",
         "messages[1].content[0].input_audio"),
        ({"role": "assistant", "audio": {"id": "a"}}, "unsupported_parameter", "messages[1].audio"),
        ({"role": "assistant", "function_call": {"name": "f"}}, "unsupported_parameter", "messages[1].function_call"),
        ({"role": "assistant", "content": "x", "annotations": [{}]}, "unsupported_parameter",
         "messages[1].annotations"),
        ({"role": "function", "name": "f", "content": "x"}, "unsupported_parameter", "messages[1].name"),
        ({"role": "assistant"}, "invalid_value", "messages[1].content"),
        ({"role": "assistant", "content": "x", "reasoning_content": "y"}, "unknown_parameter",
         "messages[1].reasoning_content"),
        ({"role": "tool", "tool_call_id": "call_9", "content": "x"}, "invalid_value", "messages[1].tool_call_id"),
        ({"role": "tool", "content": "x"}, "invalid_value", "messages[1].tool_call_id"),
        ({"role": "boss", "content": "x"}, "invalid_value", "messages[1].role"),
        ({"content": "x"}, "invalid_value", "messages[1].role"),
        (said(5), "invalid_value", "messages[1].content"),
        (said([{"type": "text"}]), "invalid_value", "messages[1].content[0].text"),
        ({**CALLS, "tool_calls": [CALL, CALL]}, "invalid_value", "messages[1].tool_calls[1].id"),
    ],
)  # fmt: skip
def test_what_a_message_cannot_carry_is_refused_with_its_place(message: Json, code: str, place: str):
    assert refusal(HI, message) == (code, place)
