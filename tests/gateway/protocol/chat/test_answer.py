"""What a response says of itself, in a chat's words; odd values read as nothing."""

from __future__ import annotations

import json

import pytest

from gateway.protocol.chat.answer import failure_of, finish_reason, logprobs_of, usage_of
from gateway.protocol.members import members_of
from tests.gateway.protocol.chat.answering import Json


def of(**members: object) -> Json:
    return members_of(json.dumps(members).encode())


@pytest.mark.parametrize(
    ("members", "called", "reason"),
    [
        ({"status": "completed"}, False, "stop"),
        ({"status": "completed"}, True, "tool_calls"),
        ({"status": "incomplete"}, True, "length"),
        ({"incomplete_details": {"reason": "max_output_tokens"}}, True, "length"),
        ({"incomplete_details": {"reason": "content_filter"}}, False, "content_filter"),
        ({"incomplete_details": "odd"}, False, "stop"),
    ],
)
def test_an_answer_has_a_reason_for_its_end(members: Json, called: bool, reason: str):
    assert finish_reason(of(**members), called=called) == reason


@pytest.mark.parametrize(
    ("code", "status"),
    [("rate_limit_exceeded", 429), ("invalid_prompt", 400), ("server_error", 502), ("anything", 502)],
)
def test_a_failure_has_the_status_of_its_code(code: str, status: int):
    failure = failure_of(of(error={"code": code, "message": "It broke."}), "failed")
    assert failure is not None
    assert (failure.status, failure.code, failure.message) == (status, code, "It broke.")
    assert json.loads(failure.error())["param"] is None


@pytest.mark.parametrize("status", ["completed", "incomplete"])
def test_a_part_of_an_answer_is_no_failure(status: str):
    assert failure_of(of(), status) is None


@pytest.mark.parametrize("usage", [None, {}, [], "odd"])
def test_usage_that_is_not_told_is_unknown_and_not_zero(usage: object):
    assert usage_of(of(usage=usage)) is None


def test_only_details_that_are_told_are_told():
    usage = usage_of(of(usage={"input_tokens": 2, "output_tokens": 3}))
    assert usage is not None
    assert usage["total_tokens"] == 5
    assert usage["prompt_tokens_details"] == usage["completion_tokens_details"] == {}


@pytest.mark.parametrize(
    "value", [None, {}, "odd", [1], [{"token": 5, "logprob": 1}], [{"token": "a", "logprob": "b"}]]
)
def test_odd_probabilities_are_none(value: object):
    assert logprobs_of(of(logprobs=value).get("logprobs")) == []
