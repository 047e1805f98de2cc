import itertools
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import UpstreamLost
from gateway.protocol.events import Event, Kind, read_event
from gateway.protocol.sse import KEEPALIVE_COMMENT, KEEPALIVE_EVENT, SseSplitter, comment, encode_event

MIB = 1024 * 1024
DELTA = b'{"type":"response.output_text.delta","delta":"a"}'
LINE_ENDS = [b"\n", b"\r\n", b"\r"]


def split(stream: bytes, *cuts: int) -> list[Event]:
    splitter = SseSplitter(MIB)
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    events: list[Event] = []
    for start, end in itertools.pairwise(edges):
        events += splitter.feed(stream[start:end])
    splitter.finish()
    return events


def content(events: list[Event]) -> list[tuple[str, Kind, bytes]]:
    return [(event.type, event.kind, event.data) for event in events]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.just("\u2028\u2029\x85é😀")
payloads = st.builds(
    lambda name, delta: msgspec.json.encode({"type": name, "delta": delta}),
    st.sampled_from(["response.created", "response.output_text.delta", "codex.x", "error"]),
    texts,
)
plain_lines = st.builds(lambda data: [b"event: x", b"data: " + data], payloads) | st.builds(
    lambda data: [b"data: " + data], payloads
)
odd_lines = st.lists(
    st.sampled_from(
        [b": comment", b"data", b"data:", b"data:x", b"data:  y", b"event: a", b"event:b", b"id: 7", b"\xff", b"retry"]
    ),
    max_size=4,
)
blocks = plain_lines | plain_lines | odd_lines
cut_lists = st.lists(st.integers(0, 10_000), max_size=12)


def assemble(blocks: list[list[bytes]], end: bytes) -> bytes:
    return b"".join(end.join([*lines, b"", b""]) for lines in blocks)


@given(st.lists(blocks, max_size=6), st.sampled_from(LINE_ENDS), cut_lists)
def test_a_stream_split_anywhere_gives_the_same_events(blocks, end, cuts):
    stream = assemble(blocks, end)
    assert split(stream, *cuts) == split(stream)


@given(st.lists(blocks, max_size=4), cut_lists, st.data())
def test_mixed_line_ends_split_anywhere_give_the_same_content(blocks, cuts, data):
    stream = assemble(blocks, b"\0")
    for _ in range(stream.count(b"\0")):
        stream = stream.replace(b"\0", data.draw(st.sampled_from(LINE_ENDS)), 1)
    assert content(split(stream, *cuts)) == content(split(stream))


@given(st.lists(payloads, max_size=6), st.sampled_from(LINE_ENDS), cut_lists)
def test_each_line_end_gives_each_event_with_the_bytes_it_came_with(payloads, end, cuts):
    blocks = [[b"event: x", b"data: " + data] for data in payloads]
    events = split(assemble(blocks, end), *cuts)
    assert [event.data for event in events] == payloads
    assert [event.raw for event in events] == [assemble([lines], end) for lines in blocks]


def test_a_multibyte_character_split_between_chunks_survives():
    data = '{"type":"x","delta":"é😀"}'.encode()
    stream = b"data: " + data + b"\n\n"
    for cut in range(len(stream)):
        assert [event.data for event in split(stream, cut)] == [data]


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_a_character_that_only_text_takes_for_a_line_end_ends_no_line(character):
    data = f'{{"type":"x","delta":"{character}{character}"}}'.encode()
    assert [event.data for event in split(b"data: " + data + b"\n\n")] == [data]


@pytest.mark.parametrize(
    ("block", "data"),
    [
        (b"data:%b\n\n", DELTA),
        (b"data:  %b\n\n", b" " + DELTA),
        (b": hi\ndata: %b\n\n", DELTA),
        (b"id: 1\nevent: e\ndata: %b\nretry: 3\n\n", DELTA),
        (b"event:e\ndata: %b\n\n", DELTA),
        (b"event: e\ndata: {\ndata: %b\n\n", b"{\n" + DELTA),
        (b"data: {\ndata:\ndata: %b\n\n", b"{\n\n" + DELTA),
    ],
)
def test_fields_are_read_as_the_standard_says(block, data):
    stream = block.replace(b"%b", DELTA)
    assert [(event.data, event.raw) for event in split(stream)] == [(data, stream)]


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b"\n\n\n\n",
        b": keepalive\n\n",
        b"event: x\n\n",
        b"data\n\n",
        b"data:\n\n",
        b"data: \n\n",
        b"DATA: x\n\n",
        b"datas: x\n\n",
        b"\xef\xbb\xbf\n\n",
    ],
)
def test_comments_and_empty_blocks_are_no_events(stream):
    assert split(stream) == []


def test_empty_lines_between_blocks_belong_to_no_event():
    stream = b"\n\ndata: " + DELTA + b"\n\n\n\n\n" + b"data: " + DELTA + b"\n\n"
    for cut in range(len(stream)):
        assert [event.raw for event in split(stream, cut)] == [b"data: " + DELTA + b"\n\n"] * 2


def test_a_byte_order_mark_before_the_stream_is_skipped():
    block = b"data: " + DELTA + b"\n\n"
    for cut in range(6):
        assert [event.raw for event in split(b"\xef\xbb\xbf" + block + block, cut)] == [block, block]


def test_a_byte_order_mark_further_on_belongs_to_its_line():
    block = b"data: " + DELTA + b"\n\n"
    assert [event.raw for event in split(block + b"\xef\xbb\xbf" + block + block)] == [block, block]


@pytest.mark.parametrize("end", LINE_ENDS)
def test_an_event_does_not_wait_for_the_byte_after_its_blank_line(end):
    splitter = SseSplitter(MIB)
    assert len(splitter.feed(b"data: " + DELTA + end + end)) == 1


def test_an_event_does_not_wait_for_the_lf_of_its_last_crlf():
    splitter = SseSplitter(MIB)
    (event,) = splitter.feed(b"data: " + DELTA + b"\r\n\r")
    assert event.raw == b"data: " + DELTA + b"\r\n\r\n"
    (event,) = splitter.feed(b"\ndata: " + DELTA + b"\r\n\r\n")
    assert event.raw == b"data: " + DELTA + b"\r\n\r\n"


def test_a_block_that_the_end_of_the_stream_cut_is_dropped():
    splitter = SseSplitter(MIB)
    assert splitter.feed(b"data: " + DELTA + b"\n") == []
    splitter.finish()
    assert splitter.feed(b"\n") == []


def test_done_is_noted_and_is_no_event():
    splitter = SseSplitter(MIB)
    assert not splitter.done
    assert len(splitter.feed(b"data: " + DELTA + b"\n\ndata: [DONE]\n\n")) == 1
    assert splitter.done


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("data", [b'{"response":{}}', b"not json"])
def test_the_event_field_gives_the_type_that_the_data_lacks(end, data):
    (event,) = split(end.join([b"event: response.completed", b"data: " + data, b"", b""]))
    assert (event.type, event.kind, event.data) == ("response.completed", Kind.TERMINAL, data)


def test_the_type_in_the_data_wins_over_the_event_field():
    (event,) = split(b"event: response.completed\ndata: " + DELTA + b"\n\n")
    assert event.kind is Kind.OTHER


def test_data_with_no_type_anywhere_is_an_untyped_event():
    assert content(split(b'data: {"a":1}\n\n')) == [("", Kind.OTHER, b'{"a":1}')]
    assert split(b"event: \xff\ndata: {}\n\n")[0].type == "\ufffd"


@pytest.mark.parametrize("cuts", [(), (7,), (3, 9)])
def test_an_event_over_the_limit_is_a_lost_upstream_and_one_of_just_the_limit_is_not(cuts):
    block = b"data: 0123456789\n\n"
    for limit, fits in ((len(block), True), (len(block) - 1, False)):
        splitter = SseSplitter(limit)
        edges = [0, *cuts, len(block)]
        chunks = [block[start:end] for start, end in itertools.pairwise(edges)]
        if fits:
            assert sum(len(splitter.feed(chunk)) for chunk in chunks) == 1
        else:
            with pytest.raises(UpstreamLost, match=f"more than {limit} bytes"):
                [splitter.feed(chunk) for chunk in chunks]


def test_an_endless_line_is_given_up_at_the_limit():
    splitter = SseSplitter(1000)
    assert [splitter.feed(b"x" * 100) for _ in range(10)] == [[]] * 10
    with pytest.raises(UpstreamLost):
        splitter.feed(b"x")


@pytest.mark.parametrize("end", LINE_ENDS)
def test_a_large_event_comes_out_of_many_chunks_whole(end):
    data = b'{"type":"response.completed","x":"' + b"a" * (10 * MIB) + b'"}'
    stream = end.join([b"event: response.completed", b"data: " + data, b"", b""])
    splitter = SseSplitter(16 * MIB)
    events = [event for at in range(0, len(stream), 65_536) for event in splitter.feed(stream[at : at + 65_536])]
    assert [event.data == data for event in events] == [True]
    assert events[0].raw == stream


def seconds_to_split(size: int) -> float:
    stream = b'data: {"type":"x","x":"' + b"a" * size + b'"}\n\n'
    splitter = SseSplitter(16 * MIB)
    start = time.process_time()
    count = sum(len(splitter.feed(stream[at : at + 1024])) for at in range(0, len(stream), 1024))
    assert count == 1
    return time.process_time() - start


def test_the_time_for_an_event_grows_with_its_size_and_not_with_its_square():
    small, large = min(seconds_to_split(MIB) for _ in range(3)), seconds_to_split(8 * MIB)
    assert large < 30 * small


def test_an_event_that_came_as_a_block_leaves_as_that_block():
    (event,) = split(b": hi\r\nevent:x\r\ndata:" + DELTA + b"\r\n\r\n")
    assert encode_event(event) == b": hi\r\nevent:x\r\ndata:" + DELTA + b"\r\n\r\n"


def test_an_event_that_came_as_a_frame_gets_a_block():
    assert encode_event(read_event(DELTA)) == b"event: response.output_text.delta\ndata: " + DELTA + b"\n\n"
    assert encode_event(read_event(b"{}")) == b"data: {}\n\n"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), st.sampled_from(LINE_ENDS))
def test_an_encoded_event_reads_as_the_same_event(event_type, end):
    text = end.join([b"{", b'"type":' + msgspec.json.encode(event_type), b"}"])
    event = read_event(text)
    (read,) = split(encode_event(event))
    assert read.data == text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert (read.type, read.kind) == (event.type, event.kind)


def test_a_line_break_in_the_type_does_not_become_a_field():
    event = read_event(b'{"type":"x\\ndata: {}"}')
    assert encode_event(event) == b'data: {"type":"x\\ndata: {}"}\n\n'


def test_a_comment_is_skipped_whatever_its_text():
    assert comment("one\ntwo") == b": one\n: two\n\n"
    assert split(comment("data: x\r\n\r\ndata: y") + KEEPALIVE_COMMENT) == []


def test_the_keepalive_event_is_one_that_means_nothing():
    assert content(split(KEEPALIVE_EVENT)) == [("keepalive", Kind.METADATA, b'{"type":"keepalive"}')]


PLAIN = [
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"%d"}\n\n' % n
    for n in range(3)
]
TERMINAL = b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"r"}}\n\n'
FIRST = b'data: {"type":"response.created","response":{"id":"r"}}\n\n'


def test_a_chunk_of_plain_events_is_one_run_with_their_bytes_and_their_number() -> None:
    splitter = SseSplitter(10_000, runs=True)
    splitter.feed(FIRST)
    (run,) = splitter.feed(b"".join(PLAIN))
    assert (run.kind, run.count, run.raw) == (Kind.OTHER, 3, b"".join(PLAIN))


@pytest.mark.parametrize(
    "odd",
    [
        TERMINAL,
        FIRST,
        b'data: {"type":"error"}\n\n',
        b'data: {"type":"codex.rate_limits"}\n\n',
        b'data: {"type":"response.output_item.done","item":{}}\n\n',
        b'data: {"type":"response.metadata"}\n\n',
        b'data: {"type": "response.completed"}\n\n',
        b'data: {"\\u0074ype":"response.completed"}\n\n',
        b'data: {"n":1,"type":"response.failed"}\n\n',
        b"data: [DONE]\n\n",
        b": comment\n\n",
        b'data: {"type":"response.output_text.delta"}\r\n\r\n',
        b'data: {"type":"response.output_text.delta",\ndata: "x":1}\n\n',
        b'data: {"type":"response.output_text.delta"}\n',
    ],
)
def test_a_chunk_with_anything_else_in_it_is_told_apart_as_ever(odd: bytes) -> None:
    chunk = PLAIN[0] + odd + PLAIN[1]
    plain, runs = SseSplitter(10_000), SseSplitter(10_000, runs=True)
    assert plain.feed(FIRST) == runs.feed(FIRST)
    assert plain.feed(chunk) == runs.feed(chunk)


@given(cuts=st.lists(st.integers(1, 400), max_size=6))
def test_runs_change_nothing_about_the_bytes_or_the_number_of_events(cuts: list[int]) -> None:
    stream = FIRST + b"".join(PLAIN) * 2 + TERMINAL
    edges = [0, *sorted({min(cut, len(stream)) for cut in cuts}), len(stream)]
    splitter = SseSplitter(10_000, runs=True)
    events = [event for begin, end in itertools.pairwise(edges) for event in splitter.feed(stream[begin:end])]
    assert b"".join(event.raw for event in events) == stream
    assert sum(event.count for event in events) == 8
