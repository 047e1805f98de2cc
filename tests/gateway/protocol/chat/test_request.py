"""Every parameter of a chat completion is carried, or refused by its name."""

from __future__ import annotations

import json
from typing import get_type_hints

import pytest
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsBase,
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)
from openai.types.responses.response_create_params import (
    ResponseCreateParamsBase,
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)

from gateway.errors import InvalidBody
from gateway.protocol.body import parse_body
from gateway.protocol.chat.request import (
    CARRIED,
    LONGEST_STOP,
    REFUSED,
    SAME,
    Form,
    param_for_client,
    translate,
)
from tests.gateway.protocol.chat.asking import HI, chat, form, refusal, response


def parameters(*kinds: type) -> set[str]:
    return {name for kind in kinds for name in get_type_hints(kind, include_extras=True)}


CHAT = parameters(CompletionCreateParamsBase, CompletionCreateParamsNonStreaming, CompletionCreateParamsStreaming)
RESPONSE = parameters(ResponseCreateParamsBase, ResponseCreateParamsNonStreaming, ResponseCreateParamsStreaming)


def test_every_parameter_that_the_sdk_knows_is_carried_or_refused():
    assert CARRIED | REFUSED.keys() == CHAT
    assert not CARRIED & REFUSED.keys()


def test_what_goes_on_unchanged_is_a_parameter_of_both_apis():
    assert set(SAME) <= CHAT & RESPONSE


# A value for each that only a translation which drops it could leave without a trace.
VALUES = {
    "logprobs": True,
    "max_completion_tokens": 77,
    "max_tokens": 77,
    "messages": [{"role": "user", "content": "mark"}],
    "metadata": {"a": "mark"},
    "model": "mark",
    "parallel_tool_calls": False,
    "prompt_cache_key": "mark",
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_retention": "24h",
    "reasoning_effort": "high",
    "response_format": {"type": "json_object"},
    "safety_identifier": "mark",
    "service_tier": "flex",
    "stop": ["mark"],
    "store": True,
    "stream": True,
    "temperature": 0.77,
    "tool_choice": "required",
    "tools": [{"type": "function", "function": {"name": "mark"}}],
    "top_p": 0.77,
    "user": "mark",
    "verbosity": "low",
}


@pytest.mark.parametrize("name", sorted(CARRIED - {"stream_options", "top_logprobs"}))
def test_what_is_carried_changes_the_request_or_the_form_of_its_answer(name: str):
    without, given = translate(chat()), translate(chat(**{name: VALUES[name]}))
    assert (given.body, given.form) != (without.body, without.form)


@pytest.mark.parametrize("name", sorted(CARRIED))
def test_a_carried_parameter_that_is_null_counts_as_absent(name: str):
    if name in ("model", "messages"):
        assert refusal(**{name: None}) == ("invalid_value", name)
    else:
        assert response(**{name: None}) == response()


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_carried_is_refused_by_name(name: str):
    assert refusal(**{name: {"some": "value"}}) == ("unsupported_parameter", name)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_value_that_asks_for_nothing_is_no_reason_to_refuse(name: str):
    for harmless in (None, *REFUSED[name][1]):
        assert response(**{name: harmless}) == response()


def test_a_parameter_nobody_knows_is_refused_by_name():
    assert refusal(top_k=5) == ("unknown_parameter", "top_k")


def test_more_than_one_answer_cannot_be_had():
    for number in (2, True, "1"):
        assert refusal(n=number) == ("unsupported_parameter", "n")


def test_a_chat_is_not_stored_unless_it_says_so():
    assert response()["store"] is False
    assert response(store=True)["store"] is True


def test_the_account_is_always_asked_for_a_stream():
    assert response()["stream"] is response(stream=True)["stream"] is True
    assert not form().stream
    assert form(stream=True).stream


def test_what_both_apis_know_goes_on_with_its_bytes():
    assert b'"metadata":{ "a" : 1.0 }' in translate(b'{"model":"m","messages":[],"metadata":{ "a" : 1.0 }}').body


def test_settings_move_to_where_a_response_has_them():
    made = response(
        max_completion_tokens=50,
        reasoning_effort="minimal",
        verbosity="low",
        response_format={"type": "json_object"},
        logprobs=True,
        top_logprobs=3,
    )
    assert made["max_output_tokens"] == 50
    assert made["reasoning"] == {"effort": "minimal"}
    assert made["text"] == {"verbosity": "low", "format": {"type": "json_object"}}
    assert made["include"] == ["message.output_text.logprobs"]
    assert made["top_logprobs"] == 3


def test_two_limits_must_say_the_same():
    assert response(max_tokens=5, max_completion_tokens=5)["max_output_tokens"] == 5
    assert refusal(max_tokens=5, max_completion_tokens=6) == ("invalid_value", "max_tokens")


def test_top_logprobs_need_logprobs():
    assert refusal(top_logprobs=2) == ("invalid_value", "top_logprobs")
    assert "top_logprobs" not in response(top_logprobs=0)


def test_stream_options_need_a_stream_and_say_whether_usage_is_wanted():
    assert refusal(stream_options={"include_usage": True}) == ("invalid_value", "stream_options")
    assert form(stream=True, stream_options={"include_usage": True}).include_usage
    assert "stream_options" not in response(stream=True, stream_options={"include_usage": True})
    assert response(stream=True, stream_options={"include_obfuscation": False})["stream_options"] == {
        "include_obfuscation": False
    }


@pytest.mark.parametrize(("given", "stops"), [("END", ("END",)), (["a", "b"], ("a", "b")), ([], ())])
def test_stop_sequences_are_for_the_gateway_to_find(given: object, stops: tuple[str, ...]):
    assert form(stop=given).stop == stops
    assert "stop" not in response(stop=given)


@pytest.mark.parametrize("given", [[""], ["a"] * 5, "x" * (LONGEST_STOP + 1)])
def test_stop_sequences_are_bounded(given: object):
    assert refusal(stop=given) == ("invalid_value", "stop")


def test_stop_sequences_cannot_cut_probabilities():
    assert refusal(stop="END", logprobs=True) == ("unsupported_parameter", "logprobs")


@pytest.mark.parametrize(
    ("members", "place"),
    [
        ({"stream": "yes"}, "stream"),
        ({"max_tokens": 10**20}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"stream": True, "stream_options": {"include": 1}}, "stream_options.include"),
        ({"tools": [{"type": "function", "function": {"name": 3}}]}, "tools[0].function.name"),
        ({"tools": {}}, "tools"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"messages": "hi"}, "messages"),
        ({"model": 5}, "model"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(members: dict[str, object], place: str):
    assert refusal(**members)[1] == place


@pytest.mark.parametrize(("raw", "code"), [(b"", "invalid_json"), (b"[]", "invalid_body"), (b"{", "invalid_json")])
def test_what_is_no_request_at_all_is_refused_like_any_body(raw: bytes, code: str):
    with pytest.raises(InvalidBody) as refused:
        translate(raw)
    assert refused.value.code == code


def test_what_comes_out_is_a_body_that_the_gateway_reads():
    body = parse_body(translate(chat(HI, prompt_cache_key="k")).body)
    assert (body.model, body.store, body.prompt_cache_key, body.is_bound) == ("gpt-5.5", False, "k", False)


@pytest.mark.parametrize(
    ("theirs", "sent", "ours"),
    [
        ("max_output_tokens", "max_tokens", "max_tokens"),
        ("max_output_tokens", "max_completion_tokens", "max_completion_tokens"),
        ("text.format.schema", "response_format", "response_format"),
        ("reasoning.effort", "reasoning_effort", "reasoning_effort"),
        ("temperature", "temperature", "temperature"),
        ("tools[0].name", "tools", "tools[0].name"),
    ],
)
def test_an_accounts_complaint_names_what_the_client_sent(theirs: str, sent: str, ours: str):
    sent_form = translate(json.dumps({"model": "m", "messages": [], sent: VALUES[sent]}).encode()).form
    assert param_for_client(theirs, sent_form) == ours
    assert param_for_client("input[2].content", sent_form) == "messages"
    assert param_for_client(None, sent_form) is None


def test_a_form_says_nothing_that_was_not_asked_for():
    assert translate(chat()).form == Form("gpt-5.5", names=(("input", "messages"), ("instructions", "messages")))
