"""What a response says of itself, as a chat says it: how it ended, what it cost, how likely its words were.

These read what an upstream sent, so they never raise: what is missing or odd reads as nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from gateway.protocol.members import count_of, members_of, text_of, value_of

STOP, LENGTH, TOOL_CALLS, CONTENT_FILTER = "stop", "length", "tool_calls", "content_filter"

Json = dict[str, object]

# Failures that are not the account's fault, with the type and the status that a chat has for them.
FAILURES = {
    "rate_limit_exceeded": ("rate_limit_error", 429),
    "invalid_prompt": ("invalid_request_error", 400),
    "context_length_exceeded": ("invalid_request_error", 400),
}

# How a call of each kind is written in a chat: its type, and the member that the model fills.
CALLS = {"function_call": ("function", "arguments"), "custom_tool_call": ("custom", "input")}


def finish_reason(response: Mapping[str, Raw], *, called: bool) -> str:
    """Why the answer ended; `called` says that it calls tools."""
    reason = text_of(members_of(response.get("incomplete_details")).get("reason"))
    if reason == CONTENT_FILTER:
        return CONTENT_FILTER
    if reason is not None or text_of(response.get("status")) == "incomplete":
        return LENGTH
    return TOOL_CALLS if called else STOP


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a response ended without an answer, with the status that a chat has for it."""

    status: int
    type: str
    code: str
    message: str

    def error(self) -> bytes:
        """The error object, as JSON."""
        return msgspec.json.encode({"message": self.message, "type": self.type, "code": self.code, "param": None})


def failure_of(response: Mapping[str, Raw], status: str) -> Failure | None:
    """The failure of a response that ended as `status`; None where it ended with an answer, if only a part of one."""
    if status not in ("failed", "cancelled"):
        return None
    error = members_of(response.get("error"))
    code = text_of(error.get("code")) or f"response_{status}"
    kind, http_status = FAILURES.get(code, ("server_error", 502))
    return Failure(http_status, kind, code, text_of(error.get("message")) or f"The response has ended as {status}.")


def usage_of(response: Mapping[str, Raw]) -> Json | None:
    """The tokens of the response, or None if it did not tell: unknown is not zero."""
    usage = members_of(response.get("usage"))
    if not usage:
        return None
    prompt, completion = count_of(usage.get("input_tokens")), count_of(usage.get("output_tokens"))
    told_in = members_of(usage.get("input_tokens_details"))
    told_out = members_of(usage.get("output_tokens_details"))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": count_of(usage["total_tokens"]) if "total_tokens" in usage else prompt + completion,
        "prompt_tokens_details": {
            name: count_of(told_in[name]) for name in ("cached_tokens", "cache_write_tokens") if name in told_in
        },
        "completion_tokens_details": {
            name: count_of(told_out[name]) for name in ("reasoning_tokens",) if name in told_out
        },
    }


def logprobs_of(text: Raw | None) -> list[Json]:
    """Token probabilities; entries that are not complete are left out."""
    value = value_of(text)
    entries = value if isinstance(value, list) else []
    return [
        {**made, "top_logprobs": [top for each in _list(entry.get("top_logprobs")) if (top := _logprob(each))]}
        for entry in entries
        if isinstance(entry, dict) and (made := _logprob(entry))
    ]


def _logprob(entry: object) -> Json | None:
    if not isinstance(entry, dict):
        return None
    token, logprob, given = entry.get("token"), entry.get("logprob"), entry.get("bytes")
    if not isinstance(token, str) or isinstance(logprob, bool) or not isinstance(logprob, int | float):
        return None
    told = isinstance(given, list) and all(type(byte) is int for byte in given)
    return {"token": token, "logprob": logprob, "bytes": given if told else None}


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()
