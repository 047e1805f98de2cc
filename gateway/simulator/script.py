"""From a request to the events of its answer. Pure: the same request, options and ids give the same events.

`reply.choose_reply` decides what the model "says", `write_script` spells it out as the event sequence of the
Responses API. An event's bytes are made once, but its `sequence_number` is put in when a plan is made,
because faults may add events.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from gateway.simulator.envelope import Envelope, Event, event
from gateway.simulator.items import delta_head, item_id, write_call, write_message, write_reasoning, write_refusal
from gateway.simulator.options import Options
from gateway.simulator.reply import Calls, Message, Refusal, Reply
from gateway.simulator.values import Json, decode_object

# The most deltas a text is cut into when the request does not say how many it wants.
DEFAULT_EVENTS = 20
REASONING_TOKENS = 16
_WORD = re.compile(r"\s*\S+\s*$|\s*\S+")


@dataclass(frozen=True, slots=True)
class Script:
    """The events of one answer, the first being `response.created` and the last one its terminal event."""

    envelope: Envelope
    events: tuple[Event, ...]
    output: tuple[Json, ...]

    def response(self, place: int) -> Json:
        """The response object in the event at that place, 0 being the first and -1 the terminal one."""
        response = decode_object(self.events[place].payload(0))["response"]
        return response if isinstance(response, dict) else {}


def write_script(reply: Reply, envelope: Envelope, options: Options) -> Script:
    """Spell out `reply`; None stands for an answer without output, as for `generate: false`."""
    created = envelope.response("queued" if envelope.background else "in_progress")
    events = [event("response.created", response=created), event("response.in_progress", response=created)]
    output: list[Json] = []
    tokens, reasoning_tokens = 0, 0
    if options.reasoning and reply is not None:
        reasoning_tokens = REASONING_TOKENS
        tokens += REASONING_TOKENS
        output.append(write_reasoning(events, envelope))
    cut_short = False
    if isinstance(reply, Message | Refusal):
        deltas = cut(reply.text, options.events, options.size)
        limit = envelope.max_output_tokens
        cut_short = limit is not None and len(deltas) > limit
        deltas = deltas[:limit]
        tokens += len(deltas)
        write = write_message if isinstance(reply, Message) else write_refusal
        output.append(write(events, envelope, deltas, len(output)))
    elif reply is not None:
        calls = reply.calls if isinstance(reply, Calls) else (reply,)
        tokens += len(calls)
        for number, call in enumerate(calls):
            output.append(write_call(events, envelope, call, len(output), number))
    usage = envelope.usage(tokens, reasoning_tokens)
    script = Script(envelope, tuple(events), tuple(output))
    if cut_short:
        return replace(script, events=(*events, incomplete(script, "max_output_tokens")))
    done = envelope.response("completed", output, usage=usage)
    return replace(script, events=(*events, event("response.completed", response=done)))


def failed(envelope: Envelope, code: str, message: str) -> Event:
    """The terminal event `response.failed`."""
    response = envelope.response("failed", error={"code": code, "message": message})
    return event("response.failed", response=response)


def incomplete(script: Script, reason: str) -> Event:
    """The terminal event `response.incomplete`, with the output and usage that the script has."""
    output = [{**item, "status": "incomplete"} for item in script.output]
    usage = script.envelope.usage(max(1, len(script.events) - 2), 0)
    response = script.envelope.response("incomplete", output, incomplete_details={"reason": reason}, usage=usage)
    return event("response.incomplete", response=response)


def text_delta(envelope: Envelope, size: int) -> Event:
    """A single text delta of `size` bytes for the message of this response."""
    head = delta_head(item_id("msg", envelope), 0)
    return Event("response.output_text.delta", head + b'"' + b"x" * size + b'"}')


@lru_cache(maxsize=64)
def cut(content: str, count: int | None, size: int) -> tuple[str, ...]:
    """`content` in `count` pieces, each padded to `size` bytes; when the words run out, numbers follow."""
    words = _WORD.findall(content) or [content]
    if count is None:
        count = min(len(words), DEFAULT_EVENTS)
    if count <= len(words):
        pieces = ["".join(words[i * len(words) // count : (i + 1) * len(words) // count]) for i in range(count)]
    else:
        pieces = words + [f" {number}" for number in range(len(words) + 1, count + 1)]
    return tuple(piece + "." * (size - len(piece.encode())) for piece in pieces)
