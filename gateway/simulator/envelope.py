"""What the events of one response have in common, and an event as it goes over the wire. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.simulator.values import Json, encode


class Event(NamedTuple):
    """One event of a stream: its type, and its JSON after the members `type` and `sequence_number`."""

    type: str
    tail: bytes

    def payload(self, number: int) -> bytes:
        return b'{"type":"%b","sequence_number":%d,%b' % (self.type.encode(), number, self.tail)


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all events of one response have in common. `tag` makes the ids of its items unique.

    `top_logprobs` is how many alternatives are told beside each token, None if no probabilities are wanted.
    """

    response_id: str
    tag: str
    account: str
    model: str
    created_at: int
    previous_response_id: str | None = None
    store: bool = True
    metadata: Mapping[str, object] = field(default_factory=dict)
    input_tokens: int = 1
    cached_tokens: int = 0
    background: bool = False
    max_output_tokens: int | None = None
    top_logprobs: int | None = None

    def response(self, status: str, output: Sequence[Json] = (), **more: object) -> Json:
        """The response object in the given state; `more` are members that differ from a fresh one."""
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "background": self.background,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": self.max_output_tokens,
            "model": self.model,
            "output": list(output),
            "parallel_tool_calls": True,
            "previous_response_id": self.previous_response_id,
            "reasoning": {"effort": None, "summary": None},
            "store": self.store,
            "temperature": 1.0,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "truncation": "disabled",
            "usage": None,
            "user": None,
            "metadata": dict(self.metadata),
            **more,
        }

    def usage(self, output_tokens: int, reasoning_tokens: int) -> Json:
        return {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": output_tokens,
            "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
            "total_tokens": self.input_tokens + output_tokens,
        }


def event(kind: str, **members: object) -> Event:
    return Event(kind, encode(members)[1:])
