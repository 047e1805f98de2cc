"""The events of a response as the chunks of a chat completion, one by one.

An upstream may tell a text in deltas, only when an item is done, or only at the very end. Whatever has not been told
before is told when it comes, and nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import Raw

from gateway.protocol.chat.answer import CALLS, STOP, Json, failure_of, finish_reason, logprobs_of, usage_of
from gateway.protocol.chat.content import Content
from gateway.protocol.chat.request import Form
from gateway.protocol.events import Event, Kind, read_terminal
from gateway.protocol.members import count_of, list_of, members_of, text_of

DONE = b"data: [DONE]\n\n"

Members = Mapping[str, Raw]


@dataclass(slots=True)
class _Item:
    """What is known of one item of the output: how much of each part has been told, and which call it is."""

    id: str | None = None
    told: dict[int, int] = field(default_factory=dict)
    call: int | None = None
    kind: str = "function_call"


class ChunkStream:
    """Translates one stream. `write` each delivery of events in order; `fail` instead ends it with an error.

    Both give the bytes for the client. After a terminal event, or `fail`, `data: [DONE]` has been written and nothing
    more may come. `created` (unix seconds) stands in for a response that does not tell its own.
    """

    def __init__(self, form: Form, created: float) -> None:
        self._form = form
        self._created = int(created)
        self._id = ""
        self._model = form.model
        self._tier: str | None = None
        self._head = b""
        self._tail = b',"usage":null}\n\n' if form.include_usage else b"}\n\n"
        self._chunks: list[bytes] = []
        self._items: dict[int, _Item] = {}
        self._calls = 0
        self._content = Content(form.stop)
        self._refusal = Content()
        self._obfuscation: str | None = None
        self._finished = False

    def write(self, events: Sequence[Event]) -> bytes:
        """The chunks of these events."""
        for event in events:
            if event.kind is Kind.TERMINAL:
                self._end(event)
            else:
                handle = _HANDLERS.get(event.type)
                if handle is not None:
                    handle(self, members_of(event.data))
        chunks, self._chunks = self._chunks, []
        return b"".join(chunks)

    def fail(self, error: bytes) -> bytes:
        """The end of a stream that broke off, with an error object."""
        return b'data: {"error":%b}\n\n%b' % (error, DONE)

    def _begin(self, members: Members) -> None:
        """The response tells who it is; the first chunk says who speaks."""
        response = members_of(members.get("response"))
        self._id = text_of(response.get("id")) or self._id
        self._model = text_of(response.get("model")) or self._model
        self._tier = text_of(response.get("service_tier"))
        self._created = count_of(response.get("created_at")) or self._created
        if not self._head:
            self._emit({"role": "assistant"})

    def _added(self, members: Members) -> None:
        item = members_of(members.get("item"))
        self._open_call(self._item(members, item), item)

    def _text(self, members: Members) -> None:
        self._obfuscation = text_of(members.get("obfuscation"))
        place, part = count_of(members.get("output_index")), count_of(members.get("content_index"))
        self._say(place, part, text_of(members.get("delta")) or "", logprobs_of(members.get("logprobs")))

    def _refuse(self, members: Members) -> None:
        self._obfuscation = text_of(members.get("obfuscation"))
        place, part = count_of(members.get("output_index")), count_of(members.get("content_index"))
        self._decline(place, part, text_of(members.get("delta")) or "")

    def _arguments(self, members: Members) -> None:
        self._obfuscation = text_of(members.get("obfuscation"))
        self._fill(self._item(members, {}), text_of(members.get("delta")) or "")

    def _item_done(self, members: Members) -> None:
        self._complete(count_of(members.get("output_index")), members_of(members.get("item")))

    def _item(self, members: Members, item: Members) -> _Item:
        known = self._items.setdefault(count_of(members.get("output_index")), _Item())
        known.id = known.id or text_of(item.get("id"))
        return known

    def _say(self, place: int, part: int, text: str, logprobs: list[Json]) -> None:
        known = self._items.setdefault(place, _Item())
        known.told[part] = known.told.get(part, 0) + len(text)
        if self._content.stopped:
            return
        shown = self._content.add(place, text)
        if shown or (logprobs and self._form.logprobs):
            self._emit({"content": shown}, logprobs=logprobs)
        self._end_at_stop()

    def _end_at_stop(self) -> None:
        """At a stop sequence the client's answer is over, however much the account goes on to say."""
        if self._content.stopped:
            self._finish(STOP)

    def _decline(self, place: int, part: int, text: str) -> None:
        known = self._items.setdefault(place, _Item())
        known.told[part] = known.told.get(part, 0) + len(text)
        shown = self._refusal.add(place, text)
        if shown and not self._content.stopped:
            self._emit({"refusal": shown})

    def _open_call(self, known: _Item, item: Members) -> None:
        """Tell that a tool is called, as soon as its name and id are known."""
        kind, call_id, name = (text_of(item.get(each)) for each in ("type", "call_id", "name"))
        if kind not in CALLS or call_id is None or name is None or known.call is not None:
            return
        if self._content.stopped:
            return
        known.call, known.kind = self._calls, kind
        self._calls += 1
        form, filled = CALLS[kind]
        self._emit_call(known, {"id": call_id, "type": form, form: {"name": name, filled: ""}})

    def _fill(self, known: _Item, text: str) -> None:
        if known.call is None or not text or self._content.stopped:
            return
        known.told[0] = known.told.get(0, 0) + len(text)
        form, filled = CALLS[known.kind]
        self._emit_call(known, {form: {filled: text}})

    def _complete(self, place: int, item: Members) -> None:
        """An item is done: tell what its deltas did not."""
        known = self._items.setdefault(place, _Item())
        known.id = known.id or text_of(item.get("id"))
        kind = text_of(item.get("type"))
        if kind == "message":
            for number, part in enumerate(list_of(item.get("content"))):
                self._complete_part(place, number, members_of(part))
        elif kind in CALLS:
            self._open_call(known, item)
            self._fill(known, (text_of(item.get(CALLS[kind][1])) or "")[known.told.get(0, 0) :])

    def _complete_part(self, place: int, number: int, part: Members) -> None:
        told = self._items[place].told.get(number, 0)
        kind = text_of(part.get("type"))
        if kind == "output_text":
            rest = (text_of(part.get("text")) or "")[told:]
            if rest:
                self._say(place, number, rest, logprobs_of(part.get("logprobs")) if told == 0 else [])
        elif kind == "refusal":
            self._decline(place, number, (text_of(part.get("refusal")) or "")[told:])

    def _end(self, event: Event) -> None:
        members = members_of(event.data)
        response = members_of(members.get("response"))
        failure = failure_of(response, read_terminal(event).status)
        if failure is not None:
            self._chunks.append(self.fail(failure.error()))
            return
        if not self._head:
            self._begin(members)
        self._tier = text_of(response.get("service_tier")) or self._tier
        for place, item in enumerate(list_of(response.get("output"))):
            told = members_of(item)
            self._complete(self._place_of(place, text_of(told.get("id"))), told)
        rest = self._content.rest()
        if rest:
            self._emit({"content": rest})
        self._finish(finish_reason(response, called=self._calls > 0))
        if self._form.include_usage:
            self._write(b"[]", usage_of(response))
        self._chunks.append(DONE)

    def _place_of(self, place: int, item_id: str | None) -> int:
        """Where an item of the final output stood in the stream: an upstream may have left some out of it."""
        if item_id is not None:
            return next((index for index, known in self._items.items() if known.id == item_id), place)
        return place

    def _finish(self, reason: str) -> None:
        if not self._finished:
            self._finished = True
            self._emit({}, reason=reason)

    def _emit_call(self, known: _Item, call: Json) -> None:
        self._emit({"tool_calls": [{"index": known.call, **call}]})

    def _emit(self, delta: Json, *, reason: str | None = None, logprobs: Sequence[Json] = ()) -> None:
        choice: Json = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        if logprobs and self._form.logprobs:
            choice["logprobs"] = {"content": logprobs, "refusal": None}
        self._write(b"[%b]" % msgspec.json.encode(choice))

    def _write(self, choices: bytes, usage: object = None) -> None:
        if not self._head:
            self._head = self._make_head()
        extra = b"" if self._tier is None else b',"service_tier":' + msgspec.json.encode(self._tier)
        if self._obfuscation is not None:
            extra += b',"obfuscation":' + msgspec.json.encode(self._obfuscation)
            self._obfuscation = None
        tail = self._tail if usage is None else b',"usage":%b}\n\n' % msgspec.json.encode(usage)
        self._chunks.append(b"".join((self._head, choices, extra, tail)))

    def _make_head(self) -> bytes:
        head = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
        }
        return b'data: %b,"choices":' % msgspec.json.encode(head)[:-1]


_HANDLERS: Mapping[str, Callable[[ChunkStream, Members], None]] = {
    "response.created": ChunkStream._begin,
    "response.output_item.added": ChunkStream._added,
    "response.output_item.done": ChunkStream._item_done,
    "response.output_text.delta": ChunkStream._text,
    "response.refusal.delta": ChunkStream._refuse,
    "response.function_call_arguments.delta": ChunkStream._arguments,
    "response.custom_tool_call_input.delta": ChunkStream._arguments,
}
