from __future__ import annotations

import pytest
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader
from websockets.utils import accept_key as reference_accept_key

from tests.bench.frames import TEXT, accept_key, header, masked_frame, take_frames

EACH_LENGTH = [0, 125, 126, 65_535, 65_536]


@pytest.mark.parametrize("length", EACH_LENGTH)
def test_a_frame_is_read_back_whatever_its_length_field(length: int) -> None:
    payload = b"x" * length

    frames, used = take_frames(header(TEXT, length) + payload + b"\x81")

    assert frames == [(TEXT, True, payload)]
    assert used == len(header(TEXT, length)) + length


@pytest.mark.parametrize("length", EACH_LENGTH)
def test_a_masked_frame_is_what_a_strict_server_reads(length: int) -> None:
    reader = StreamReader()
    reader.feed_data(masked_frame(TEXT, b"x" * length))
    parsing = Frame.parse(reader.read_exact, mask=True)

    with pytest.raises(StopIteration) as ended:
        next(parsing)

    assert ended.value.value == Frame(Opcode.TEXT, b"x" * length)


def test_frames_cut_anywhere_wait_for_their_rest() -> None:
    data = header(TEXT, 200) + b"a" * 200 + header(TEXT, 3) + b"end"

    for cut in range(len(data)):
        first, used = take_frames(data[:cut])
        second, _ = take_frames(data[used:])
        assert [frame.payload for frame in first + second] == [b"a" * 200, b"end"]


def test_no_more_of_a_masked_payload_is_given_than_was_asked_for() -> None:
    frames, used = take_frames(masked_frame(TEXT, b"abcdefgh"), unmask=3)

    assert frames[0].payload == b"abc"
    assert used == 2 + 4 + 8


def test_the_handshake_is_answered_as_rfc_6455_asks() -> None:
    key = "dGhlIHNhbXBsZSBub25jZQ=="

    assert accept_key(key.encode()).decode() == reference_accept_key(key)
