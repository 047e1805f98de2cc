"""The items of an answer, spelled out as the events that tell them. Pure."""

from __future__ import annotations

from functools import lru_cache

from gateway.simulator.envelope import Envelope, Event, event
from gateway.simulator.reply import Call
from gateway.simulator.seal import seal
from gateway.simulator.values import Json, encode


@lru_cache(maxsize=64)
def _quoted(deltas: tuple[str, ...]) -> tuple[bytes, ...]:
    """The JSON strings of the deltas: a benchmark asks for the same ones thousands of times."""
    return tuple(encode(delta) + b"}" for delta in deltas)


def item_id(prefix: str, envelope: Envelope) -> str:
    return f"{prefix}_{envelope.tag}"


def write_reasoning(events: list[Event], envelope: Envelope) -> Json:
    item: Json = {"id": item_id("rs", envelope), "type": "reasoning", "summary": []}
    events.append(event("response.output_item.added", output_index=0, item=item))
    item = {**item, "encrypted_content": seal(envelope.account, f"reasoning {envelope.tag}")}
    events.append(event("response.output_item.done", output_index=0, item=item))
    return item


def write_message(events: list[Event], envelope: Envelope, deltas: tuple[str, ...], index: int) -> Json:
    """A message in so many deltas, with the probability of each if they are wanted."""
    part: Json = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    likely = _likely(deltas, envelope.top_logprobs)
    place = _begin_message(events, envelope, part, index)
    whole = "".join(deltas)
    full_part: Json = {**part, "text": whole, "logprobs": likely}
    if likely:
        told = zip(deltas, likely, strict=True)
        events += [event("response.output_text.delta", **place, delta=delta, logprobs=[each]) for delta, each in told]
    else:
        head = delta_head(str(place["item_id"]), index)
        events.extend(Event("response.output_text.delta", head + quoted) for quoted in _quoted(deltas))
    events.append(event("response.output_text.done", **place, text=whole, logprobs=likely))
    return _end_message(events, envelope, full_part, place)


def write_refusal(events: list[Event], envelope: Envelope, deltas: tuple[str, ...], index: int) -> Json:
    """A message that declines, in so many deltas."""
    part: Json = {"type": "refusal", "refusal": ""}
    place = _begin_message(events, envelope, part, index)
    whole = "".join(deltas)
    events += [event("response.refusal.delta", **place, delta=delta) for delta in deltas]
    events.append(event("response.refusal.done", **place, refusal=whole))
    return _end_message(events, envelope, {**part, "refusal": whole}, place)


def _begin_message(events: list[Event], envelope: Envelope, part: Json, index: int) -> Json:
    """The events before a message's deltas; returns what says where in the output it stands."""
    place: Json = {"item_id": item_id("msg", envelope), "output_index": index, "content_index": 0}
    events.append(event("response.output_item.added", output_index=index, item=_message(envelope, "in_progress")))
    events.append(event("response.content_part.added", **place, part=part))
    return place


def _end_message(events: list[Event], envelope: Envelope, part: Json, place: Json) -> Json:
    item = _message(envelope, "completed", part)
    events.append(event("response.content_part.done", **place, part=part))
    events.append(event("response.output_item.done", output_index=place["output_index"], item=item))
    return item


def _message(envelope: Envelope, status: str, *parts: Json) -> Json:
    return {
        "id": item_id("msg", envelope),
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": list(parts),
    }


def _likely(deltas: tuple[str, ...], most: int | None) -> list[Json]:
    """A probability for each delta, with `most` alternatives; none if `most` is None."""
    if most is None:
        return []
    return [{**_token(delta, 0), "top_logprobs": [_token(delta, rank) for rank in range(most)]} for delta in deltas]


def _token(delta: str, rank: int) -> Json:
    word = delta + "'" * rank
    return {"token": word, "logprob": -0.25 * (rank + 1), "bytes": list(word.encode())}


def write_call(events: list[Event], envelope: Envelope, call: Call, index: int, number: int = 0) -> Json:
    """A call of a tool, the `number`th of several at once."""
    custom = call.tool.type == "custom_tool_call"
    member = "input" if custom else "arguments"
    stem = "response.custom_tool_call_input" if custom else "response.function_call_arguments"
    ending = f"_{number}" if number else ""
    label = item_id("ctc" if custom else "fc", envelope) + ending
    empty: Json = {
        "id": label,
        "type": call.tool.type,
        "status": "in_progress",
        "call_id": item_id("call", envelope) + ending,
        "name": call.name,
        member: "",
    }
    if call.tool.namespace is not None:
        empty["namespace"] = call.tool.namespace
    item = {**empty, "status": "completed", member: call.input}
    place: Json = {"item_id": label, "output_index": index}
    events.append(event("response.output_item.added", output_index=index, item=empty))
    half = len(call.input) // 2
    events += [
        event(f"{stem}.delta", **place, delta=piece) for piece in (call.input[:half], call.input[half:]) if piece
    ]
    events.append(event(f"{stem}.done", **place, **{member: call.input}))
    events.append(event("response.output_item.done", output_index=index, item=item))
    return item


def delta_head(item_id: str, index: int) -> bytes:
    return b'"item_id":"%b","output_index":%d,"content_index":0,"logprobs":[],"delta":' % (
        item_id.encode(),
        index,
    )
