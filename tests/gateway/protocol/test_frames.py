"""Frames are cut as a full parser would read them, whatever comes and however it arrives."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import DATA_OPCODES, Frame, Opcode
from websockets.protocol import Protocol, Side

from gateway.protocol.frames import FrameCutter


class Parser:
    """The library's parser after a handshake, and the messages it has read."""

    def __init__(self) -> None:
        self._protocol = Protocol(Side.CLIENT, max_size=None)
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that `data` completes."""
        self._protocol.receive_data(data)
        messages = []
        for frame in self._protocol.events_received():
            if frame.opcode in DATA_OPCODES:
                self._parts.append(bytes(frame.data))
                if frame.fin:
                    messages.append(b"".join(self._parts))
                    self._parts.clear()
        assert self._protocol.parser_exc is None
        return messages


def text(data: bytes) -> bytes:
    return Frame(Opcode.TEXT, data).serialize(mask=False)


def fragments(parts: list[bytes], opcode: Opcode, between: bytes) -> bytes:
    frames = [
        Frame(Opcode.CONT if number else opcode, part, fin=number == len(parts) - 1).serialize(mask=False)
        for number, part in enumerate(parts)
    ]
    return between.join(frames)


sizes = st.sampled_from([0, 1, 125, 126, 127, 300, 65535, 65536, 70000])
texts = sizes.map(lambda size: text(b"t" * size))
controls = st.sampled_from(
    [Frame(Opcode.PING, b"p").serialize(mask=False), Frame(Opcode.PONG, b"").serialize(mask=False)]
)
fragmented = st.builds(
    fragments,
    st.lists(st.binary(max_size=5), min_size=2, max_size=4),
    st.sampled_from([Opcode.TEXT, Opcode.BINARY]),
    controls | st.just(b""),
)
binaries = st.binary(max_size=200).map(lambda data: Frame(Opcode.BINARY, data).serialize(mask=False))
streams = st.lists(texts | controls | fragmented | binaries, max_size=8).map(b"".join)


@given(streams, st.lists(st.integers(0, 300_000), max_size=12))
def test_cutter_and_parser_together_read_what_the_parser_alone_reads(stream: bytes, cuts: list[int]) -> None:
    alone, cutter, parser = Parser(), FrameCutter(), Parser()
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    read = []
    for start, end in itertools.pairwise(edges):
        messages, rest = cutter.cut(stream[start:end])
        read += messages + parser.feed(rest)
    assert read == alone.feed(stream)


@given(st.lists(sizes.filter(lambda size: size < 65536), min_size=1, max_size=5), st.integers(1, 400))
def test_short_texts_never_reach_the_parser(lengths: list[int], step: int) -> None:
    stream = b"".join(text(b"t" * size) for size in lengths)
    cutter = FrameCutter()
    cut = [cutter.cut(stream[start : start + step]) for start in range(0, len(stream), step)]
    assert [len(message) for messages, _ in cut for message in messages] == lengths
    assert {rest for _, rest in cut} == {b""}


@pytest.mark.parametrize("first", [0xC1, 0x01, 0x80, 0x88], ids=["reserved bit", "not final", "continued", "close"])
def test_a_frame_that_is_no_whole_text_is_the_parsers(first: int) -> None:
    frame = bytes((first, 1)) + b"x"
    assert FrameCutter().cut(text(b"a") + frame) == ([b"a"], frame)


def test_a_text_in_the_midst_of_a_fragmented_message_is_the_parsers_to_refuse() -> None:
    cutter = FrameCutter()
    begun = Frame(Opcode.TEXT, b"a", fin=False).serialize(mask=False)
    assert cutter.cut(begun) == ([], begun)
    assert cutter.cut(text(b"b")) == ([], text(b"b"))


def test_a_masked_frame_is_the_parsers_to_refuse() -> None:
    frame = Frame(Opcode.TEXT, b"abc").serialize(mask=True)
    cutter = FrameCutter()
    assert cutter.cut(frame) == ([], frame)
    assert cutter.cut(text(b"next")) == ([b"next"], b"")
