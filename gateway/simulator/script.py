"""From a request to the events of its answer. Pure: the same request, options and ids give the same events.

`choose_reply` decides what the model "says", `write_script` spells it out as the event sequence of the
Responses API. An event's bytes are made once, but its `sequence_number` is put in when a plan is made,
because faults may add events.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

from gateway.simulator.options import Options
from gateway.simulator.seal import seal
from gateway.simulator.values import Json, encode, objects, text

# The most deltas a text is cut into when the request does not say how many it wants.
DEFAULT_EVENTS = 20
REASONING_TOKENS = 16
CallType = Literal["function_call", "custom_tool_call"]


class Tool(NamedTuple):
    """A tool that the client offers: how it is called, and the namespace it stands in."""

    type: CallType
    namespace: str | None = None


_TOOL_TYPES: Mapping[str, CallType] = {"function": "function_call", "custom": "custom_tool_call"}
# The tools that run a command, in order of preference, and how each one wants it. `exec` is Codex's code
# mode, where the model writes JavaScript that calls the other tools.
_COMMAND_TOOLS: Mapping[tuple[str, CallType], Callable[[str], str]] = {
    ("exec_command", "function_call"): lambda command: _json({"cmd": command}),
    ("shell_command", "function_call"): lambda command: _json({"command": command}),
    ("shell", "function_call"): lambda command: _json({"command": ["bash", "-lc", command]}),
    ("exec", "custom_tool_call"): lambda command: f"text((await tools.exec_command({_json({'cmd': command})})).output)",
}
_COMMAND = re.compile(r"\brun:[ \t]*(\S[^\n]*)")
_WORD = re.compile(r"\s*\S+\s*$|\s*\S+")


class Event(NamedTuple):
    """One event of a stream: its type, and its JSON after the members `type` and `sequence_number`."""

    type: str
    tail: bytes

    def payload(self, number: int) -> bytes:
        return b'{"type":"%b","sequence_number":%d,%b' % (self.type.encode(), number, self.tail)


@dataclass(frozen=True, slots=True)
class Message:
    """The model says something."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """The model calls a tool of the client; `input` is JSON for a function, any text for a custom tool."""

    name: str
    tool: Tool
    input: str


Reply = Message | Call | None


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all events of one response have in common. `tag` makes the ids of its items unique."""

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

    def response(self, status: str, output: Sequence[Json] = (), **more: object) -> Json:
        """The response object in the given state; `more` are members that differ from a fresh one."""
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": None,
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
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": output_tokens,
            "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
            "total_tokens": self.input_tokens + output_tokens,
        }


@dataclass(frozen=True, slots=True)
class Script:
    """The events of one answer, the first being `response.created` and the last one its terminal event."""

    envelope: Envelope
    events: tuple[Event, ...]
    output: tuple[Json, ...]


def choose_reply(items: Sequence[Json], tools: Mapping[str, Tool], options: Options, account: str) -> Message | Call:
    """Answer the newest thing in `items`: a tool's output is quoted, `run: <command>` is called, else a
    greeting.

    `tools` are those that the client offers, by name.
    """
    for item in reversed(items):
        kind = text(item.get("type"))
        if kind in ("function_call_output", "custom_tool_call_output"):
            return Message(f"The command printed: {_printed(content_text(item.get('output')))}")
        if kind not in ("", "message"):
            continue
        if item.get("role") == "assistant":
            break
        command = _COMMAND.search(content_text(item.get("content")))
        if item.get("role") == "user" and command is not None:
            call = _command_call(command[1].strip(), tools)
            if call is not None:
                return call
    return Message(options.text or f"Hello from {account}.")


def content_text(content: object) -> str:
    """The text of a message's content or a tool's output, given as a string or as a list of parts."""
    return text(content) or "".join(text(part.get("text")) for part in objects(content))


def offered_tools(body_tools: object, items: Sequence[Json]) -> dict[str, Tool]:
    """The tools in `tools` and in `additional_tools` items, also those inside namespaces, by name."""
    lists: list[tuple[str | None, list[Json]]] = [(None, objects(body_tools))]
    for item in items:
        if item.get("type") == "additional_tools":
            lists.append((None, objects(item.get("tools"))))
    found: dict[str, Tool] = {}
    for namespace, tools in lists:
        for tool in tools:
            name = text(tool.get("name"))
            if tool.get("type") == "namespace":
                lists.append((name, objects(tool.get("tools"))))
            elif tool.get("type") in _TOOL_TYPES:
                found[name] = Tool(_TOOL_TYPES[text(tool.get("type"))], namespace)
    return found


def write_script(reply: Reply, envelope: Envelope, options: Options) -> Script:
    """Spell out `reply`; None stands for an answer without output, as for `generate: false`."""
    created = envelope.response("in_progress")
    events = [event("response.created", response=created), event("response.in_progress", response=created)]
    output: list[Json] = []
    tokens, reasoning_tokens = 0, 0
    if options.reasoning and reply is not None:
        reasoning_tokens = REASONING_TOKENS
        tokens += REASONING_TOKENS
        output.append(_write_reasoning(events, envelope))
    if isinstance(reply, Message):
        deltas = cut(reply.text, options.events, options.size)
        tokens += len(deltas)
        output.append(_write_message(events, envelope, deltas, len(output)))
    elif isinstance(reply, Call):
        tokens += 1
        output.append(_write_call(events, envelope, reply, len(output)))
    done = envelope.response("completed", output, usage=envelope.usage(tokens, reasoning_tokens))
    events.append(event("response.completed", response=done))
    return Script(envelope, tuple(events), tuple(output))


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
    head = _delta_head(_item_id("msg", envelope), 0)
    return Event("response.output_text.delta", head + b'"' + b"x" * size + b'"}')


def event(kind: str, **members: object) -> Event:
    return Event(kind, encode(members)[1:])


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


@lru_cache(maxsize=64)
def _quoted(deltas: tuple[str, ...]) -> tuple[bytes, ...]:
    """The JSON strings of the deltas: a benchmark asks for the same ones thousands of times."""
    return tuple(encode(delta) + b"}" for delta in deltas)


def _json(value: object) -> str:
    return encode(value).decode()


def _item_id(prefix: str, envelope: Envelope) -> str:
    return f"{prefix}_{envelope.tag}"


def _printed(output: str) -> str:
    """What a command printed, without the lines that Codex puts before it."""
    _, mark, printed = output.partition("Output:\n")
    return (printed if mark else output).strip()


def _command_call(command: str, tools: Mapping[str, Tool]) -> Call | None:
    for (name, call_type), write in _COMMAND_TOOLS.items():
        tool = tools.get(name)
        if tool is not None and tool.type == call_type:
            return Call(name, tool, write(command))
    return None


def _write_reasoning(events: list[Event], envelope: Envelope) -> Json:
    item: Json = {"id": _item_id("rs", envelope), "type": "reasoning", "summary": []}
    events.append(event("response.output_item.added", output_index=0, item=item))
    item = {**item, "encrypted_content": seal(envelope.account, f"reasoning {envelope.tag}")}
    events.append(event("response.output_item.done", output_index=0, item=item))
    return item


def _write_message(events: list[Event], envelope: Envelope, deltas: tuple[str, ...], index: int) -> Json:
    item_id = _item_id("msg", envelope)
    empty: Json = {
        "id": item_id,
        "type": "message",
        "status": "in_progress",
        "role": "assistant",
        "content": [],
    }
    place: Json = {"item_id": item_id, "output_index": index, "content_index": 0}
    part: Json = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    whole = "".join(deltas)
    full_part: Json = {**part, "text": whole}
    item = {**empty, "status": "completed", "content": [full_part]}
    head = _delta_head(item_id, index)
    events.append(event("response.output_item.added", output_index=index, item=empty))
    events.append(event("response.content_part.added", **place, part=part))
    events.extend(Event("response.output_text.delta", head + quoted) for quoted in _quoted(deltas))
    events.append(event("response.output_text.done", **place, text=whole, logprobs=[]))
    events.append(event("response.content_part.done", **place, part=full_part))
    events.append(event("response.output_item.done", output_index=index, item=item))
    return item


def _write_call(events: list[Event], envelope: Envelope, call: Call, index: int) -> Json:
    custom = call.tool.type == "custom_tool_call"
    member = "input" if custom else "arguments"
    stem = "response.custom_tool_call_input" if custom else "response.function_call_arguments"
    item_id = _item_id("ctc" if custom else "fc", envelope)
    empty: Json = {
        "id": item_id,
        "type": call.tool.type,
        "status": "in_progress",
        "call_id": _item_id("call", envelope),
        "name": call.name,
        member: "",
    }
    if call.tool.namespace is not None:
        empty["namespace"] = call.tool.namespace
    item = {**empty, "status": "completed", member: call.input}
    place: Json = {"item_id": item_id, "output_index": index}
    events.append(event("response.output_item.added", output_index=index, item=empty))
    events.append(event(f"{stem}.delta", **place, delta=call.input))
    events.append(event(f"{stem}.done", **place, **{member: call.input}))
    events.append(event("response.output_item.done", output_index=index, item=item))
    return item


def _delta_head(item_id: str, index: int) -> bytes:
    return b'"item_id":"%b","output_index":%d,"content_index":0,"logprobs":[],"delta":' % (
        item_id.encode(),
        index,
    )
