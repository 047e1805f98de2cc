"""The answer of the measured upstream: the events of a Responses stream, made beforehand, stamped when sent.

Every event carries when it was written, in nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share. So
whoever reads it, on the same machine, knows how long it travelled without any further message. The stamp of the
terminal event has another name, so that a reader finds the end without decoding anything.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache

from tests.bench.frames import TEXT, header

# What surrounds the deltas: created, in_progress, two `added` before and three `done` and completed behind.
FRAMING_EVENTS = 8
STAMP = re.compile(rb'"(sent|last)_at": ?"(\d{20})"')
# The longest a stamp can be, so that one cut in two by the network is found when its other half arrives.
STAMP_BYTES = 40
DELTA = "measured, "

_SHAPE = re.compile(rb'"model": ?"bench-(\d+)x(\d+)"')
_STAMP_SLOT = b"0" * 20
_ID_SLOT = b"resp_" + b"0" * 20


@dataclass(frozen=True, slots=True)
class Shape:
    """How an answer is shaped: `events` in all, `interval` milliseconds between two of them, 0 for all at once."""

    events: int
    interval: int

    @property
    def model(self) -> str:
        """The model name that asks the upstream for this shape; it passes every gateway unchanged."""
        return f"bench-{self.events}x{self.interval}"


def shape_asked_for(body: bytes) -> Shape | None:
    """The shape that a request's body asks for by its model name, or None if it asks for none."""
    found = _SHAPE.search(body)
    return None if found is None else Shape(int(found[1]), int(found[2]))


@dataclass(frozen=True, slots=True)
class Piece:
    """One event, ready to be written, in front of and behind its stamp."""

    before: bytes
    behind: bytes

    def stamped(self, now: int) -> bytes:
        """The bytes to write at `now`, nanoseconds of CLOCK_MONOTONIC."""
        return b"%b%020d%b" % (self.before, now, self.behind)

    def with_id(self, response_id: bytes) -> Piece:
        """The same event of another response; the id must be as long as every other."""
        return Piece(self.before.replace(_ID_SLOT, response_id), self.behind.replace(_ID_SLOT, response_id))


def pieces(number: int, count: int, *, as_frames: bool) -> list[Piece]:
    """The `count` events of answer `number`, as WebSocket frames or as the chunks of an event stream."""
    response_id = b"resp_%020d" % number
    template = _frame_pieces(count) if as_frames else _chunk_pieces(count)
    named = {0, 1, count - 1}
    return [piece.with_id(response_id) if index in named else piece for index, piece in enumerate(template)]


@lru_cache
def _frame_pieces(count: int) -> list[Piece]:
    return [_cut(header(TEXT, len(text)) + text) for _, text in _events(count)]


@lru_cache
def _chunk_pieces(count: int) -> list[Piece]:
    blocks = [b"event: %b\ndata: %b\n\n" % (name.encode(), text) for name, text in _events(count)]
    return [_cut(b"%x\r\n%b\r\n" % (len(block), block)) for block in blocks]


def _cut(data: bytes) -> Piece:
    before, slot, behind = data.partition(_STAMP_SLOT)
    if not slot or _STAMP_SLOT in behind.replace(_ID_SLOT, b""):
        raise AssertionError("an event needs one place for its stamp")
    return Piece(before, behind)


def _events(count: int) -> list[tuple[str, bytes]]:
    """The types and JSON texts of an answer of `count` events, with slots for stamp and response id."""
    deltas = count - FRAMING_EVENTS
    if deltas < 1:
        raise ValueError(f"An answer has at least {FRAMING_EVENTS + 1} events, not {count}.")
    place: dict[str, object] = {"item_id": "msg_bench", "output_index": 0, "content_index": 0}
    part: dict[str, object] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    full_part = {**part, "text": DELTA * deltas}
    item: dict[str, object] = {"id": "msg_bench", "type": "message", "status": "in_progress", "role": "assistant"}
    done = {**item, "status": "completed", "content": [full_part]}
    told: list[tuple[str, dict[str, object]]] = [
        ("response.created", {"response": _response("in_progress")}),
        ("response.in_progress", {"response": _response("in_progress")}),
        ("response.output_item.added", {"output_index": 0, "item": {**item, "content": []}}),
        ("response.content_part.added", {**place, "part": part}),
        *[("response.output_text.delta", {**place, "delta": DELTA, "logprobs": []})] * deltas,
        ("response.output_text.done", {**place, "text": DELTA * deltas, "logprobs": []}),
        ("response.content_part.done", {**place, "part": full_part}),
        ("response.output_item.done", {"output_index": 0, "item": done}),
        ("response.completed", {"response": _response("completed", [done])}),
    ]
    return [(name, _text(name, number, count, members)) for number, (name, members) in enumerate(told)]


def _text(name: str, number: int, count: int, members: dict[str, object]) -> bytes:
    stamp = "last_at" if number == count - 1 else "sent_at"
    event = {"type": name, stamp: _STAMP_SLOT.decode(), "sequence_number": number, **members}
    return json.dumps(event, separators=(",", ":")).encode()


def _response(status: str, output: list[dict[str, object]] | None = None) -> dict[str, object]:
    """The response object, with about as many members as a real one."""
    usage = {
        "input_tokens": 1000,
        "input_tokens_details": {"cached_tokens": 500},
        "output_tokens": 100,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 1100,
    }
    return {
        "id": _ID_SLOT.decode(),
        "object": "response",
        "created_at": 1_700_000_000,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "model": "bench",
        "output": output or [],
        "parallel_tool_calls": False,
        "previous_response_id": None,
        "reasoning": {"effort": "medium", "summary": None},
        "store": False,
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "tool_choice": "auto",
        "tools": [],
        "truncation": "disabled",
        "usage": usage if status == "completed" else None,
        "metadata": {},
    }
