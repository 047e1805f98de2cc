"""Responses as an upstream tells them, and what a client makes of the chunks that they become."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.protocol.chat.completion import completion_of
from gateway.protocol.chat.request import Form
from gateway.protocol.chat.stream import DONE, ChunkStream
from gateway.protocol.events import Event, read_event
from gateway.protocol.sse import SseSplitter

Json = dict[str, Any]
NOW = 1_796_000_000.0
USAGE: Json = {
    "input_tokens": 30,
    "input_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 2},
    "output_tokens": 20,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 50,
}


def message(*parts: Json, number: int = 0) -> Json:
    return {
        "id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed", "content": list(parts)
    }  # fmt: skip


def text_part(text: str, logprobs: list[Json] | None = None) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def refusal_part(text: str) -> Json:
    return {"type": "refusal", "refusal": text}


def function_call(name: str = "weather", arguments: str = "{}", number: int = 0) -> Json:
    return {
        "id": f"fc_{number}", "type": "function_call", "status": "completed", "call_id": f"call_{number}",
        "name": name, "arguments": arguments,
    }  # fmt: skip


def custom_call(name: str = "shell", given: str = "ls", number: int = 0) -> Json:
    return {
        "id": f"ctc_{number}", "type": "custom_tool_call", "status": "completed", "call_id": f"call_{number}",
        "name": name, "input": given,
    }  # fmt: skip


def response(*items: Json, **members: object) -> Json:
    return {
        "id": "resp_1", "object": "response", "created_at": 1_790_000_000, "status": "completed", "model": "gpt-5.5-x",
        "output": list(items), "usage": USAGE, "incomplete_details": None, "error": None, **members,
    }  # fmt: skip


def pieces(text: str, size: int = 3) -> Iterator[str]:
    for start in range(0, len(text), size):
        yield text[start : start + size]


def told(whole: Json, *, deltas: bool = True, items: bool = True, ending: str = "response.completed") -> list[Json]:
    """The events that tell a response: in deltas, by whole items, or only at its end."""
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    events: list[Json] = [{"type": "response.created", "response": begun}]
    for place, item in enumerate(whole["output"]):
        if deltas:
            events += _deltas(item, place)
        if items:
            events.append({"type": "response.output_item.done", "output_index": place, "item": item})
    return [*events, {"type": ending, "response": whole}]


def _deltas(item: Json, place: int) -> Iterator[Json]:
    at = {"output_index": place, "item_id": item["id"]}
    filled = {"function_call": "arguments", "custom_tool_call": "input"}.get(item["type"])
    empty = {**item, "content": []} if filled is None else {**item, filled: ""}
    yield {"type": "response.output_item.added", "output_index": place, "item": empty}
    if filled is not None:
        stem = "function_call_arguments" if filled == "arguments" else "custom_tool_call_input"
        for piece in pieces(item[filled]):
            yield {"type": f"response.{stem}.delta", **at, "delta": piece}
    for number, part in enumerate(item.get("content", [])):
        kind = "output_text" if part["type"] == "output_text" else "refusal"
        text, logprobs = part.get("text", part.get("refusal")), part.get("logprobs", [])
        for position, piece in enumerate(pieces(text)):
            likely = {"logprobs": logprobs if position == 0 else []} if kind == "output_text" else {}
            yield {"type": f"response.{kind}.delta", **at, "content_index": number, "delta": piece, **likely}


def as_events(events: Iterable[Json]) -> list[Event]:
    return [read_event(json.dumps(each).encode()) for each in events]


def streamed(events: Iterable[Json], form: Form | None = None) -> bytes:
    """What the client gets for these events, each delivered alone."""
    stream = ChunkStream(form or Form("gpt-5.5", stream=True), NOW)
    return b"".join(stream.write([event]) for event in as_events(events))


def completed(whole: Json, form: Form | None = None) -> ChatCompletion:
    """The completion for a response, checked by the official SDK's type."""
    return ChatCompletion.model_validate_json(
        completion_of(json.dumps(whole).encode(), form or Form("gpt-5.5"), NOW), strict=True
    )


@dataclass
class Heard:
    """What a client of the official SDK has put together from a stream."""

    chunks: list[ChatCompletionChunk] = field(default_factory=list)
    errors: list[Json] = field(default_factory=list)
    content: str | None = None
    refusal: str | None = None
    calls: dict[int, Json] = field(default_factory=dict)
    logprobs: list[Any] = field(default_factory=list)
    finish_reasons: list[str] = field(default_factory=list)

    @property
    def usage(self) -> Json | None:
        last = self.chunks[-1].usage
        return None if last is None else last.model_dump(exclude_none=True)


def hear(stream: bytes) -> Heard:
    """Read a whole stream; it must consist of valid chunks and end with the mark and nothing else."""
    assert stream.count(DONE) == 1
    assert stream.endswith(DONE)
    heard = Heard()
    splitter = SseSplitter(len(stream))
    for event in splitter.feed(stream):
        data = json.loads(event.data)
        if "error" in data:
            heard.errors.append(data["error"])
        else:
            _take(heard, ChatCompletionChunk.model_validate_json(event.data, strict=True), data)
    assert splitter.done
    return heard


def _take(heard: Heard, chunk: ChatCompletionChunk, raw: Json) -> None:
    heard.chunks.append(chunk)
    for choice, plain in zip(chunk.choices, raw["choices"], strict=True):
        assert choice.index == 0
        assert not heard.finish_reasons
        if choice.delta.content is not None:
            heard.content = (heard.content or "") + choice.delta.content
        if choice.delta.refusal is not None:
            heard.refusal = (heard.refusal or "") + choice.delta.refusal
        if choice.logprobs is not None:
            heard.logprobs += choice.logprobs.content or []
        for call in plain["delta"].get("tool_calls", []):
            _take_call(heard, call)
        if choice.finish_reason is not None:
            heard.finish_reasons.append(choice.finish_reason)


def _take_call(heard: Heard, call: Json) -> None:
    index = call["index"]
    if "id" in call:
        assert index == len(heard.calls)
        form = call["type"]
        heard.calls[index] = {"id": call["id"], "type": form, form: dict(call[form])}
        return
    known = heard.calls[index]
    filled = "arguments" if known["type"] == "function" else "input"
    known[known["type"]][filled] += call[known["type"]][filled]


WORDS = st.text(max_size=12)
PARTS = st.one_of(st.builds(text_part, WORDS), st.builds(refusal_part, WORDS))


@st.composite
def responses(draw: st.DrawFn) -> Json:
    """Any response that ended with an answer."""
    items: list[Json] = []
    for number in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["message", "function", "reasoning"]))
        if kind == "message":
            items.append(message(*draw(st.lists(PARTS, max_size=3)), number=number))
        elif kind == "function":
            items.append(function_call(draw(st.text(max_size=5)), draw(WORDS), number))
        else:
            items.append({"id": f"rs_{number}", "type": "reasoning", "summary": []})
    reason = draw(st.sampled_from([None, None, "max_output_tokens", "content_filter"]))
    ended = {} if reason is None else {"status": "incomplete", "incomplete_details": {"reason": reason}}
    return response(*items, usage=draw(st.sampled_from([None, USAGE])), **ended)


FORMS = st.builds(
    Form,
    st.just("gpt-5.5"),
    stream=st.just(True),
    include_usage=st.booleans(),
    stop=st.lists(st.text(min_size=1, max_size=2), max_size=2).map(tuple),
)
