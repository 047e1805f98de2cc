"""WebSocket frames from a server, cut where only their headers tell (RFC 6455 section 5.2).

Nearly everything an upstream sends is a short text message in a frame of its own. Those are cut out here, at a small
part of what a full parser costs; the bytes of all other frames are for that parser.
"""

from __future__ import annotations

_FIN = 0x80
_MASKED = 0x80
_LENGTH = 0x7F
_WHOLE_TEXT = _FIN | 0x1
_LAST_DATA_OPCODE = 0x2
# The header says so when the length does not fit in it, and follows in two bytes, or in eight.
_LENGTH_IN_TWO = 126
_SHORT_HEADER = 4


class FrameCutter:
    """Give it everything that arrives after the handshake, in pieces of any size, each byte once."""

    def __init__(self) -> None:
        # The beginning of a short text frame, or of a header, whose rest has not arrived.
        self._kept = b""
        # Bytes of a frame for the parser that have not arrived, and whether it began a message that is not complete.
        self._parsers = 0
        self._fragmented = False

    def cut(self, data: bytes) -> tuple[list[bytes], bytes]:
        """The messages at the front of `data`, then the bytes that are for the parser, of whole frames or parts.

        What is neither is kept until more arrives.
        """
        if self._kept:
            data, self._kept = self._kept + data, b""
        if self._parsers or self._fragmented:
            return [], self._for_parser(data)
        messages: list[bytes] = []
        position, size = 0, len(data)
        while (
            size - position > 1 and data[position] == _WHOLE_TEXT and (length := data[position + 1]) <= _LENGTH_IN_TWO
        ):
            start = position + 2
            if length == _LENGTH_IN_TWO:
                start = position + _SHORT_HEADER
                length = data[position + 2] << 8 | data[position + 3] if size >= start else size
            if start + length > size:
                self._kept = data[position:]
                return messages, b""
            position = start + length
            messages.append(data[start:position])
        return messages, self._for_parser(data[position:]) if position < size else b""

    def _for_parser(self, data: bytes) -> bytes:
        """`data` without the beginning of a header at its end; notes where the frames in it end."""
        position, size = self._parsers, len(data)
        while position < size:
            end = _end_of_frame(data, position)
            if end is None:
                self._kept = data[position:]
                size = position
                break
            first, position = data[position], end
            if first & ~_FIN <= _LAST_DATA_OPCODE:
                self._fragmented = not first & _FIN
        self._parsers = position - size
        return data[:size]


def _end_of_frame(data: bytes, start: int) -> int | None:
    """Where the frame that begins at `start` ends, perhaps beyond `data`; None while its header is not complete."""
    if len(data) < start + 2:
        return None
    length = data[start + 1] & _LENGTH
    header = start + 2
    if length >= _LENGTH_IN_TWO:
        size = 2 if length == _LENGTH_IN_TWO else 8
        if len(data) < header + size:
            return None
        length = int.from_bytes(data[header : header + size])
        header += size
    return header + length + (4 if data[start + 1] & _MASKED else 0)
