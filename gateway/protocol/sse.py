"""Server-sent events on bytes: a stream is cut into events that keep the bytes they came with.

The format is section 9.2 of the HTML standard ("Server-sent events"). Lines end with LF, CR or CRLF and with
nothing else: U+2028, U+2029 and NEL are ordinary characters of a JSON string.
"""

from __future__ import annotations

import re

from gateway.errors import UpstreamLost
from gateway.protocol.events import Event, Kind, kind_of, read_event

KEEPALIVE_EVENT = b'event: keepalive\ndata: {"type":"keepalive"}\n\n'
"""An event that means nothing. The Codex client's idle timer is reset by events, not by comments."""

KEEPALIVE_COMMENT = b": keepalive\n\n"
"""Keeps a connection alive without an event, for clients that would not know what to do with one."""

# Possessive, so that a CRLF is never taken for a CR and an LF of their own.
_BLANK_LINE = re.compile(rb"(?:\r\n?+|\n)(?:\r\n?+|\n)")
_LINE_END = re.compile(rb"\r\n?|\n")
_LINE_END_BYTES = b"\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DONE = b"[DONE]"
_EVENT_LINE = b"event: "
_DATA_LINE = b'data: {"type":"'


class SseSplitter:
    """Cuts a stream that arrives in chunks of any size into its events.

    Give each chunk to `feed`, and call `finish` once when the stream has ended. The work is linear in the
    bytes fed, and no more than `limit` bytes and one chunk are held. After UpstreamLost the splitter is of no
    more use. With `runs` a chunk of nothing but plain events is one Event, for who only passes their bytes on.
    """

    def __init__(self, limit: int, *, runs: bool = False) -> None:
        self.done = False
        """Whether the stream said `data: [DONE]`, which is no event."""
        self._limit = limit
        self._runs = runs
        self._pending = bytearray()
        # Line ends that the last chunk stopped with: only the next byte tells whether a blank line follows.
        self._tail = b""
        self._has_cr = False
        self._at_start = True
        self._plain_head = b""

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes, in order. Comments and empty blocks give none.

        Raises UpstreamLost when a block is larger than the limit.
        """
        if self._runs and self._at_boundary and (count := self._plain_events(chunk)) and len(chunk) <= self._limit:
            return [Event("", Kind.OTHER, b"", chunk, count)]
        if not self._has_cr and b"\r" in chunk:
            self._has_cr = True
        find_end = _end_of_block if self._has_cr else _end_of_lf_block
        data = self._tail + chunk if self._tail else chunk
        events: list[Event] = []
        start = 0
        while (end := find_end(data, start)) > 0:
            event = self._read_block(self._complete(data[start:end]))
            if event is not None:
                events.append(event)
            start = end
        self._keep(data[start:] if start else data)
        return events

    @property
    def _at_boundary(self) -> bool:
        """Whether the next byte begins a block, and nothing of the stream can change what it means."""
        return not (self._pending or self._tail or self._at_start or self._has_cr)

    def _plain_events(self, chunk: bytes) -> int:
        """How many whole events of one and the same plain type `chunk` consists of; 0 if it is anything else.

        Events that only have to be carried come in such runs. Counting bytes is many times faster than reading blocks,
        and a head that was found to be plain once is not looked at again.
        """
        head = self._plain_head
        if not head or not chunk.startswith(head):
            head = self._plain_head = _plain_head(chunk)
        if not head or not chunk.endswith(b"\n\n") or b"\r" in chunk:
            return 0
        # JSON text holds no line break, so as many heads as blank lines, and no other line, is as many events.
        count = chunk.count(b"\n\n")
        lines = 3 if head.startswith(_EVENT_LINE) else 2
        return count if chunk.count(b"\n") == lines * count and chunk.count(head) == count else 0

    def finish(self) -> None:
        """The stream has ended; a block that no blank line completed is dropped, as the standard asks.

        It may have been cut anywhere. Whether the response itself had ended is for the caller to know.
        """
        self._pending = bytearray()
        self._tail = b""

    def _keep(self, rest: bytes) -> None:
        """Hold the beginning of the next block until more of it arrives."""
        if not self._pending:
            rest = rest.lstrip(_LINE_END_BYTES)
        text = rest.rstrip(_LINE_END_BYTES)
        self._tail = rest[len(text) :]
        self._pending += text
        if len(self._pending) > self._limit:
            raise self._too_large()

    def _complete(self, block: bytes) -> bytes:
        """The whole block that ends with `block`, without the empty lines before it."""
        if self._pending:
            self._pending += block
            block = bytes(self._pending)
            self._pending = bytearray()
        elif block[0] in _LINE_END_BYTES:
            block = block.lstrip(_LINE_END_BYTES)
        if self._has_cr and block.endswith(b"\r\n\r"):
            # The chunk ended inside the CRLF of the blank line. The event need not wait for the LF, which
            # will pass as an empty line, but what is relayed has to have it.
            block += b"\n"
        if len(block) > self._limit:
            raise self._too_large()
        if self._at_start and block:
            self._at_start = False
            block = block.removeprefix(_BYTE_ORDER_MARK)
        return block

    def _read_block(self, block: bytes) -> Event | None:
        name, data = _lf_fields(block) if not self._has_cr else _fields(block)
        if not data:
            return None
        if data == _DONE:
            self.done = True
            return None
        event = read_event(data, block)
        if event.type or not name:
            return event
        event_type = name.decode(errors="replace")
        return Event(event_type, kind_of(event_type), data, block)

    def _too_large(self) -> UpstreamLost:
        return UpstreamLost(
            f"The upstream sent an event of more than {self._limit} bytes, the most that one may have; "
            "the response was given up."
        )


def _plain_head(chunk: bytes) -> bytes:
    """What the first event of `chunk` begins with, up to the end of its type, if that is a plain one; else nothing."""
    line = chunk.find(b"\n") + 1 if chunk.startswith(_EVENT_LINE) else 0
    start = line + len(_DATA_LINE)
    end = chunk.find(b'"', start)
    if end < 0 or not chunk.startswith(_DATA_LINE, line):
        return b""
    event_type = chunk[start:end]
    if b"\\" in event_type or kind_of(event_type.decode(errors="replace")) is not Kind.OTHER:
        return b""
    return chunk[: end + 1]


def _end_of_lf_block(data: bytes, start: int) -> int:
    """What `_end_of_block` gives for a stream without CR."""
    position = data.find(b"\n\n", start)
    return position + 2 if position >= 0 else -1


def _end_of_block(data: bytes, start: int) -> int:
    """Where the block that begins at `start` ends, its blank line included, or -1."""
    match = _BLANK_LINE.search(data, start)
    return match.end() if match is not None else -1


def _lf_fields(block: bytes) -> tuple[bytes, bytes]:
    """What `_fields` gives, without splitting the block if it is `event: …`, `data: …` and a blank line."""
    line = block.find(b"\n") + 1 if block.startswith(b"event: ") else 0
    if block.startswith(b"data: ", line) and block.find(b"\n", line) == len(block) - 2:
        return block[7 : line - 1] if line else b"", block[line + 6 : -2]
    return _fields(block)


def _fields(block: bytes) -> tuple[bytes, bytes]:
    """The last `event` field, and the `data` fields joined by LF; other lines mean nothing here."""
    name = b""
    data: list[bytes] = []
    for line in _LINE_END.split(block):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return name, b"\n".join(data)


def encode_event(event: Event) -> bytes:
    """The SSE block of an event: the bytes it came with, or a new block if it did not come as one."""
    if event.raw:
        return event.raw
    if event.type and b"\n" not in event.data and b"\r" not in event.data and event.type.isprintable():
        return b"event: %b\ndata: %b\n\n" % (event.type.encode(), event.data)
    lines = [b"data: " + line for line in _LINE_END.split(event.data)]
    # A line break in the type would end the field early and let the rest pass as fields.
    if event.type and not _LINE_END.search(event.type.encode()):
        lines.insert(0, b"event: " + event.type.encode())
    return b"\n".join(lines) + b"\n\n"


def comment(text: str) -> bytes:
    """A comment block, which clients skip; each line of `text` becomes a comment line."""
    return b"\n".join(b": " + line for line in _LINE_END.split(text.encode())) + b"\n\n"
