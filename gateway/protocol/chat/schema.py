"""The schema of a request for a chat completion, made from the types that read it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Raw

from gateway.protocol.chat.formats import ResponseFormat
from gateway.protocol.chat.messages import Message
from gateway.protocol.chat.request import LONGEST_STOP, MOST_STOPS, StreamOptions
from gateway.protocol.chat.tools import Choice, Tool

# A JSON schema is as loose as JSON.
Json = dict[str, Any]

_READ: dict[str, Any] = {
    "messages": list[Message],
    "response_format": ResponseFormat | None,
    "stream_options": StreamOptions | None,
    "tool_choice": Choice | None,
    "tools": list[Tool] | None,
}


def chat_request() -> Json:
    """The schema of the body; it refers to `chat_components`."""
    flag, text, number = ({"type": [kind, "null"]} for kind in ("boolean", "string", "number"))
    count = {"type": ["integer", "null"], "minimum": 0, "maximum": 2**53}
    sequence = {"type": "string", "minLength": 1, "maxLength": LONGEST_STOP}
    plain: Json = {
        "logprobs": flag,
        "max_completion_tokens": count,
        "max_tokens": count,
        "metadata": {"type": ["object", "null"], "additionalProperties": {"type": "string"}},
        "model": {"type": "string"},
        "parallel_tool_calls": flag,
        "prompt_cache_key": text,
        "prompt_cache_options": {"type": ["object", "null"]},
        "prompt_cache_retention": text,
        "reasoning_effort": text,
        "safety_identifier": text,
        "service_tier": text,
        "stop": {"anyOf": [sequence, {"type": "array", "items": sequence, "maxItems": MOST_STOPS}, {"type": "null"}]},
        "store": flag,
        "stream": flag,
        "temperature": number,
        "top_logprobs": count,
        "top_p": number,
        "user": text,
        "verbosity": text,
    }
    read = dict(zip(_READ, _made()[0], strict=True))
    return {
        "type": "object",
        "required": ["model", "messages"],
        "additionalProperties": False,
        "properties": dict(sorted((plain | read).items())),
    }


def chat_components() -> Json:
    """The schemas that `chat_request` refers to, by name."""
    return _made()[1]


@lru_cache(maxsize=1)
def _made() -> tuple[tuple[Json, ...], Json]:
    return msgspec.json.schema_components(
        tuple(_READ.values()),
        schema_hook=_anything,
        ref_template="#/components/schemas/{name}",
    )


def _anything(kind: type) -> Json:
    """What is carried as it is has no schema here."""
    if kind is Raw:
        return {}
    raise NotImplementedError(kind)
