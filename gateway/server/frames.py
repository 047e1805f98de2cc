"""WebSocket frames to the client: whole, final and unmasked (RFC 6455 sections 5.1 and 5.2)."""

from __future__ import annotations

import struct

TEXT = 0x1
BINARY = 0x2

_FIN = 0x80


def frame_header(opcode: int, length: int) -> bytes:
    """The header of an unfragmented, unmasked frame with `length` bytes of payload."""
    if length < 126:
        return bytes((_FIN | opcode, length))
    if length < 65536:
        return struct.pack("!BBH", _FIN | opcode, 126, length)
    return struct.pack("!BBQ", _FIN | opcode, 127, length)
