"""A whole response as one chat completion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from msgspec import Raw

from gateway.protocol.chat.answer import CALLS, STOP, Json, finish_reason, logprobs_of, usage_of
from gateway.protocol.chat.content import Content
from gateway.protocol.chat.request import Form
from gateway.protocol.members import count_of, list_of, members_of, text_of


@dataclass(slots=True)
class _Said:
    """What the output says, gathered item by item. A text or refusal that never came is None, not empty."""

    content: Content
    refused: Content
    text: str | None = None
    refusal: str | None = None
    calls: list[Json] = field(default_factory=list)
    logprobs: list[Json] = field(default_factory=list)


def completion_of(response: bytes | Raw, form: Form, created: float) -> bytes:
    """The completion that says what `response`, a response object that did not fail, says.

    `created` (unix seconds) stands in for a response that does not tell its own.
    """
    told = members_of(response)
    said = _gather(told, form)
    message: Json = {"role": "assistant", "content": said.text, "refusal": said.refusal}
    if said.calls:
        message["tool_calls"] = said.calls
    reason = STOP if said.content.stopped else finish_reason(told, called=bool(said.calls))
    logprobs = {"content": said.logprobs, "refusal": None} if said.logprobs and form.logprobs else None
    completion: Json = {
        "id": text_of(told.get("id")) or "",
        "object": "chat.completion",
        "created": count_of(told.get("created_at")) or int(created),
        "model": text_of(told.get("model")) or form.model,
        "choices": [{"index": 0, "message": message, "logprobs": logprobs, "finish_reason": reason}],
    }
    for name, value in (("usage", usage_of(told)), ("service_tier", text_of(told.get("service_tier")))):
        if value is not None:
            completion[name] = value
    return msgspec.json.encode(completion)


def _gather(response: Mapping[str, Raw], form: Form) -> _Said:
    said = _Said(Content(form.stop), Content())
    for place, text in enumerate(list_of(response.get("output"))):
        if said.content.stopped:
            break
        item = members_of(text)
        kind = text_of(item.get("type"))
        if kind == "message":
            for part in list_of(item.get("content")):
                _add_part(said, place, members_of(part))
        elif kind in CALLS and not said.content.stopped:
            _add_call(said, kind, item)
    rest = said.content.rest()
    if rest:
        said.text = (said.text or "") + rest
    return said


def _add_part(said: _Said, place: int, part: Mapping[str, Raw]) -> None:
    if said.content.stopped:
        return
    kind = text_of(part.get("type"))
    if kind == "output_text":
        said.text = (said.text or "") + said.content.add(place, text_of(part.get("text")) or "")
        said.logprobs += logprobs_of(part.get("logprobs"))
    elif kind == "refusal":
        said.refusal = (said.refusal or "") + said.refused.add(place, text_of(part.get("refusal")) or "")


def _add_call(said: _Said, kind: str, item: Mapping[str, Raw]) -> None:
    call_id, name = text_of(item.get("call_id")), text_of(item.get("name"))
    if call_id is None or name is None:
        return
    form, filled = CALLS[kind]
    inside = {"name": name, filled: text_of(item.get(filled)) or ""}
    said.calls.append({"id": call_id, "type": form, form: inside})
