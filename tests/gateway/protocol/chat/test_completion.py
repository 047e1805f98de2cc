"""A whole response as one completion, checked with the official SDK's type."""

from __future__ import annotations

import pytest
from hypothesis import given

from gateway.protocol.chat.request import Form
from tests.gateway.protocol.chat.answering import (
    NOW,
    USAGE,
    Json,
    completed,
    custom_call,
    function_call,
    message,
    refusal_part,
    response,
    responses,
    text_part,
)


def test_a_message_becomes_the_one_choice():
    completion = completed(response(message(text_part("Hello, "), text_part("you."))))
    assert (completion.id, completion.model, completion.created) == ("resp_1", "gpt-5.5-x", 1_790_000_000)
    (choice,) = completion.choices
    assert (choice.message.content, choice.message.refusal, choice.message.tool_calls) == ("Hello, you.", None, None)
    assert (choice.finish_reason, choice.logprobs) == ("stop", None)
    assert completion.usage is not None
    assert completion.usage.total_tokens == USAGE["total_tokens"]
    assert completion.usage.prompt_tokens_details is not None
    assert completion.usage.prompt_tokens_details.cached_tokens == 10
    assert completion.usage.completion_tokens_details is not None
    assert completion.usage.completion_tokens_details.reasoning_tokens == 5


def test_calls_of_tools_are_in_the_order_of_the_output():
    (choice,) = completed(response(function_call(number=0), custom_call(number=1))).choices
    assert choice.message.content is None
    assert choice.finish_reason == "tool_calls"
    assert [call.model_dump() for call in choice.message.tool_calls or []] == [
        {"id": "call_0", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
        {"id": "call_1", "type": "custom", "custom": {"name": "shell", "input": "ls"}},
    ]


def test_a_refusal_has_a_place_of_its_own():
    (choice,) = completed(response(message(refusal_part("I can not.")))).choices
    assert (choice.message.content, choice.message.refusal) == (None, "I can not.")


def test_several_messages_become_one_and_do_not_run_together():
    whole = response(message(text_part("Let me see."), number=0), message(text_part("It is 5."), number=1))
    assert completed(whole).choices[0].message.content == "Let me see.\n\nIt is 5."


@pytest.mark.parametrize(("reason", "finish"), [("max_output_tokens", "length"), ("content_filter", "content_filter")])
def test_an_answer_that_was_cut_short_says_why(reason: str, finish: str):
    whole = response(function_call(), status="incomplete", incomplete_details={"reason": reason})
    assert completed(whole).choices[0].finish_reason == finish


def test_probabilities_come_when_they_were_asked_for():
    likely: list[Json] = [
        {"token": "a", "logprob": -1, "bytes": [97], "top_logprobs": [{"token": "b", "logprob": -2.5, "bytes": [98]}]},
        {"token": "c"},
        "odd",
    ]
    whole = response(message(text_part("ac", likely)))
    assert completed(whole).choices[0].logprobs is None
    told = completed(whole, Form("m", logprobs=True)).choices[0].logprobs
    assert told is not None
    (token,) = told.content or []
    assert (token.token, token.top_logprobs[0].token) == ("a", "b")


def test_the_answer_ends_at_a_stop_sequence():
    whole = response(message(text_part("one END two")), function_call(number=1))
    (choice,) = completed(whole, Form("m", stop=("END",))).choices
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == ("one ", None, "stop")


def test_what_is_not_told_is_not_made_up():
    completion = completed({})
    assert (completion.id, completion.model, completion.created) == ("", "gpt-5.5", int(NOW))
    assert completion.usage is None
    assert completion.service_tier is None


@given(responses())
def test_any_response_is_a_valid_completion(whole: Json):
    completed(whole)
