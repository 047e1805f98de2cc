"""The chunks of a completion: every word once, in order, with a reason at the end, and nothing after it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.chat.request import Form
from gateway.protocol.chat.stream import DONE, ChunkStream
from gateway.protocol.events import Kind, read_event
from gateway.protocol.sse import SseSplitter, encode_event
from tests.gateway.protocol.chat.answering import (
    FORMS,
    NOW,
    Json,
    as_events,
    completed,
    custom_call,
    function_call,
    hear,
    message,
    refusal_part,
    response,
    responses,
    streamed,
    text_part,
    told,
)

STREAM = Form("gpt-5.5", stream=True)
LIKELY: Json = {"token": "He", "logprob": -0.5, "bytes": [72, 101], "top_logprobs": [{"token": "He", "logprob": -0.5}]}


def test_a_message_comes_piece_by_piece_and_ends_with_its_reason():
    heard = hear(streamed(told(response(message(text_part("Hello, you."))))))
    assert heard.content == "Hello, you."
    assert heard.finish_reasons == ["stop"]
    assert len(heard.chunks) == 6
    first = heard.chunks[0]
    assert first.choices[0].delta.role == "assistant"
    assert {(chunk.id, chunk.model, chunk.created) for chunk in heard.chunks} == {
        ("resp_1", "gpt-5.5-x", 1_790_000_000)
    }
    assert all(chunk.usage is None for chunk in heard.chunks)


@pytest.mark.parametrize(
    ("deltas", "items"), [(True, True), (True, False), (False, True), (False, False)],
    ids=["all", "no items", "no deltas", "the end alone"],
)  # fmt: skip
def test_however_an_upstream_tells_it_nothing_is_missing_and_nothing_comes_twice(deltas: bool, items: bool):
    whole = response(
        message(text_part("I will look."), number=1), function_call(number=2), function_call("time", '{"a":1}', 3)
    )
    heard = hear(streamed(told(whole, deltas=deltas, items=items)))
    assert heard.content == "I will look."
    assert heard.calls == {
        0: {"id": "call_2", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
        1: {"id": "call_3", "type": "function", "function": {"name": "time", "arguments": '{"a":1}'}},
    }
    assert heard.finish_reasons == ["tool_calls"]


def test_an_output_that_was_left_empty_at_the_end_has_been_told_before():
    events = told(response(message(text_part("Hello."))))
    events[-1]["response"]["output"] = []
    assert hear(streamed(events)).content == "Hello."


def test_items_that_the_end_leaves_out_do_not_shift_the_others():
    events = told(response({"id": "rs_0", "type": "reasoning", "summary": []}, message(text_part("Hello."))))
    events[-1] = {"type": "response.completed", "response": response(message(text_part("Hello.")))}
    assert hear(streamed(events)).content == "Hello."


def test_a_refusal_is_no_content():
    heard = hear(streamed(told(response(message(refusal_part("I can not."))))))
    assert (heard.content, heard.refusal, heard.finish_reasons) == (None, "I can not.", ["stop"])


def test_custom_calls_are_told_with_their_input():
    stream = streamed(told(response(custom_call())))
    calls = [
        call
        for line in stream.split(b"\n\n")
        if line.startswith(b"data: {")
        for choice in json.loads(line[6:])["choices"]
        for call in choice["delta"].get("tool_calls", [])
    ]
    assert calls[0] == {"index": 0, "id": "call_0", "type": "custom", "custom": {"name": "shell", "input": ""}}
    assert calls[1] == {"index": 0, "custom": {"input": "ls"}}


@pytest.mark.parametrize(
    ("reason", "finish"), [("max_output_tokens", "length"), ("content_filter", "content_filter"), ("odd", "length")]
)
def test_an_answer_that_was_cut_short_says_why(reason: str, finish: str):
    whole = response(message(text_part("Hel")), status="incomplete", incomplete_details={"reason": reason})
    assert hear(streamed(told(whole, ending="response.incomplete"))).finish_reasons == [finish]


def test_usage_comes_last_and_only_when_it_was_asked_for():
    heard = hear(streamed(told(response(message(text_part("a")))), Form("m", stream=True, include_usage=True)))
    assert heard.chunks[-1].choices == []
    assert heard.usage == {
        "prompt_tokens": 30,
        "completion_tokens": 20,
        "total_tokens": 50,
        "prompt_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }
    assert [chunk.usage for chunk in heard.chunks[:-1]] == [None] * (len(heard.chunks) - 1)


def test_a_usage_that_was_not_told_is_unknown():
    events = told(response(message(text_part("a")), usage=None))
    assert hear(streamed(events, Form("m", stream=True, include_usage=True))).usage is None


def test_probabilities_come_with_their_words_when_they_were_asked_for():
    events = told(response(message(text_part("He", [LIKELY]))))
    (token,) = hear(streamed(events, Form("m", stream=True, logprobs=True))).logprobs
    assert (token.token, token.logprob, token.bytes) == ("He", -0.5, [72, 101])
    assert token.top_logprobs[0].bytes is None
    assert hear(streamed(events)).logprobs == []


def test_the_answer_ends_at_a_stop_sequence_and_what_follows_is_not_told():
    whole = response(message(text_part("one END two")), function_call(number=1))
    events = told(whole)
    heard = hear(streamed(events, Form("m", stream=True, stop=("END",), include_usage=True)))
    assert (heard.content, heard.finish_reasons, heard.calls) == ("one ", ["stop"], {})
    assert heard.usage is not None


def test_at_a_stop_sequence_the_client_is_told_at_once():
    stream = ChunkStream(Form("m", stream=True, stop=("ne",)), NOW)
    before = stream.write(as_events(told(response(message(text_part("one two"))))[:3]))
    assert b'"finish_reason":"stop"' in before


@pytest.mark.parametrize(
    ("code", "kind"),
    [("server_error", "server_error"), ("rate_limit_exceeded", "rate_limit_error"), (None, "server_error")],
)
def test_a_response_that_failed_ends_with_an_error(code: str | None, kind: str):
    failed = response(status="failed", error=None if code is None else {"code": code, "message": "It broke."})
    (error,) = hear(streamed(told(failed, ending="response.failed"))).errors
    assert (error["type"], error["code"]) == (kind, code or "response_failed")


def test_an_end_that_does_not_say_how_is_taken_at_its_word():
    for word, failed in (("completed", False), ("cancelled", True)):
        heard = hear(streamed(told(response(message(text_part("a")), status=word), ending="response.done")))
        assert bool(heard.errors) is failed


def test_a_stream_that_breaks_off_ends_with_the_error_and_the_mark():
    stream = ChunkStream(STREAM, NOW)
    begun = stream.write(as_events(told(response(message(text_part("Hello."))))[:3]))
    heard = hear(begun + stream.fail(b'{"message":"Lost.","code":"upstream_connection_lost"}'))
    assert heard.content == "Hel"
    assert heard.errors == [{"message": "Lost.", "code": "upstream_connection_lost"}]


def test_padding_of_the_account_goes_on_to_the_client():
    events = told(response(message(text_part("abc"))))
    events[2]["obfuscation"] = "xyz"
    assert [chunk.obfuscation for chunk in hear(streamed(events)).chunks].count("xyz") == 1


def test_the_service_tier_is_told():
    events = told(response(message(text_part("abc")), service_tier="flex"))
    assert {chunk.service_tier for chunk in hear(streamed(events)).chunks} == {"flex"}


def test_a_response_that_never_said_who_it_is_is_a_valid_stream_all_the_same():
    heard = hear(streamed([{"type": "response.completed", "response": {}}]))
    assert (heard.chunks[0].id, heard.chunks[0].model, heard.chunks[0].created) == ("", "gpt-5.5", int(NOW))


@given(responses(), FORMS, st.booleans(), st.booleans())
def test_a_stream_says_what_the_whole_completion_says(whole: Json, form: Form, deltas: bool, items: bool):
    heard = hear(streamed(told(whole, deltas=deltas, items=items), form))
    choice = completed(whole, form).choices[0]
    assert (heard.content or "") == (choice.message.content or "")
    assert (heard.refusal or "") == (choice.message.refusal or "")
    assert [*heard.calls.values()] == [call.model_dump() for call in choice.message.tool_calls or []]
    assert heard.finish_reasons == [choice.finish_reason]


@given(responses(), FORMS, st.data())
def test_where_the_bytes_of_the_events_are_cut_makes_no_difference(whole: Json, form: Form, data: st.DataObject):
    events = told(whole)
    raw = b"".join(encode_event(event) for event in as_events(events))
    splitter, stream = SseSplitter(len(raw) + 1), ChunkStream(form, NOW)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    written = b"".join(
        stream.write(splitter.feed(raw[start:end])) for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)
    )
    assert written == streamed(events, form)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = [
    "response", "output", "item", "delta", "output_index", "content_index", "content", "type", "text", "id", "name",
    "call_id", "arguments", "refusal", "usage", "incomplete_details", "error", "logprobs", "status", "model",
]  # fmt: skip
WORDS = st.sampled_from(["message", "function_call", "output_text", "refusal", "failed", "incomplete", "x", ""])
ODD = st.recursive(
    JUNK | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=12,
)
TYPES = [
    "response.created", "response.output_item.added", "response.output_item.done", "response.output_text.delta",
    "response.refusal.delta", "response.function_call_arguments.delta", "response.reasoning_text.delta", "",
]  # fmt: skip
ENDINGS = ["response.completed", "response.incomplete", "response.failed", "response.cancelled", "response.done"]


@st.composite
def odd_events(draw: st.DrawFn) -> list[Json]:
    """Events with the names of real ones and anything in them."""
    members = st.dictionaries(st.sampled_from(NAMES), ODD, max_size=6)
    kinds = [*draw(st.lists(st.sampled_from(TYPES), max_size=6)), draw(st.sampled_from(ENDINGS))]
    return [{**draw(members), "type": kind} for kind in kinds]


@given(odd_events(), FORMS)
def test_whatever_an_upstream_sends_the_stream_is_valid_and_ends(events: list[Any], form: Form):
    hear(streamed(events, form))


@given(st.lists(st.binary(max_size=30), max_size=5), FORMS)
def test_events_that_are_no_json_are_passed_over(payloads: list[bytes], form: Form):
    stream = ChunkStream(form, NOW)
    events = [event for event in map(read_event, payloads) if event.kind is not Kind.TERMINAL]
    assert stream.write(events) == b""
    assert hear(stream.fail(b"{}")).errors == [{}]


def test_the_mark_is_what_clients_look_for():
    assert DONE == b"data: [DONE]\n\n"
