from __future__ import annotations

import json

import pytest

from tests.bench.answers import FRAMING_EVENTS, STAMP, Shape, pieces, shape_asked_for
from tests.bench.driver import take_chunks
from tests.bench.frames import take_frames
from tests.bench.requests import body, create_frame, encode


def events_of(count: int, number: int = 1) -> list[dict[str, object]]:
    data = b"".join(piece.stamped(7) for piece in pieces(number, count, as_frames=True))
    return [json.loads(frame.payload) for frame in take_frames(data)[0]]


def test_an_answer_is_a_numbered_response_from_created_to_completed() -> None:
    events = events_of(12)

    assert [event["sequence_number"] for event in events] == list(range(12))
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.completed"
    assert [event["type"] for event in events].count("response.output_text.delta") == 12 - FRAMING_EVENTS


def test_only_the_last_event_has_the_last_stamp() -> None:
    events = events_of(9)

    assert [event.get("sent_at") for event in events[:-1]] == [f"{7:020d}"] * 8
    assert "sent_at" not in events[-1]
    assert events[-1]["last_at"] == f"{7:020d}"


def test_each_answer_has_an_id_of_its_own() -> None:
    first, second = events_of(9, number=1), events_of(9, number=2)

    ids = [event["response"]["id"] for events in (first, second) for event in (events[0], events[-1])]  # type: ignore[index]
    assert ids[0] == ids[1] != ids[2] == ids[3]


def test_chunks_hold_the_same_events_as_frames() -> None:
    stream, rest, complete = take_chunks(b"".join(piece.stamped(7) for piece in pieces(1, 9, as_frames=False)))

    lines = [line.removeprefix(b"data: ") for line in stream.split(b"\n") if line.startswith(b"data: ")]
    assert [json.loads(line) for line in lines] == events_of(9)
    assert (rest, complete) == (b"", False)


def test_a_stamp_is_found_whatever_spaces_a_gateway_writes() -> None:
    assert STAMP.findall(b'{"sent_at": "00000000000000000007"}') == [(b"sent", b"00000000000000000007")]


def test_an_answer_needs_a_delta_between_its_framing_events() -> None:
    with pytest.raises(ValueError, match="at least 9 events, not 8"):
        pieces(1, 8, as_frames=True)


@pytest.mark.parametrize("size", [4096, 40_960])
def test_a_request_asks_for_its_shape_and_has_its_size(size: int) -> None:
    shape = Shape(events=100, interval=10)

    content = encode(body(shape, size))

    assert shape_asked_for(content[:4096]) == shape
    assert size <= len(content) < size + 200


def test_a_frame_asks_for_the_same_shape_within_the_bytes_that_are_unmasked() -> None:
    frames, _ = take_frames(create_frame(body(Shape(9, 0), 40_960)), unmask=4096)

    assert len(frames[0].payload) == 4096
    assert shape_asked_for(frames[0].payload) == Shape(9, 0)


def test_a_request_for_something_else_asks_for_no_shape() -> None:
    assert shape_asked_for(b'{"model":"gpt-5.5"}') is None
