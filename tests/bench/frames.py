"""As much of RFC 6455 as the measuring programs need: small, so that they cost little beside what they measure."""

from __future__ import annotations

import base64
import hashlib
import os
from typing import NamedTuple

TEXT, CLOSE, PING, PONG = 0x1, 0x8, 0x9, 0xA
FIN, MASKED = 0x80, 0x80
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Frame(NamedTuple):
    """One frame; `payload` is unmasked where `take_frames` was asked for that, else as it came."""

    opcode: int
    final: bool
    payload: bytes


def header(opcode: int, length: int, key: bytes = b"") -> bytes:
    """The header of a final frame (section 5.2), masked if there is a `key`."""
    masked = MASKED if key else 0
    if length < 126:
        size = bytes((masked | length,))
    elif length < 1 << 16:
        size = bytes((masked | 126,)) + length.to_bytes(2)
    else:
        size = bytes((masked | 127,)) + length.to_bytes(8)
    return bytes((FIN | opcode,)) + size + key


def masked_frame(opcode: int, payload: bytes) -> bytes:
    """A frame as clients send it, with a random key (section 5.3)."""
    key = os.urandom(4)
    return header(opcode, len(payload), key) + masked(payload, key)


def masked(payload: bytes, key: bytes) -> bytes:
    """`payload` masked with `key`, or unmasked, which is the same."""
    size = len(payload)
    pad = (key * (size // 4 + 1))[:size]
    return (int.from_bytes(payload) ^ int.from_bytes(pad)).to_bytes(size)


def take_frames(data: bytes | bytearray, unmask: int = 0) -> tuple[list[Frame], int]:
    """The complete frames at the beginning of `data`, and how many bytes they take; drop those before the next call.

    Of a masked payload no more than the first `unmask` bytes are given, unmasked: the upstream needs no more of a
    large request than its model.
    """
    frames: list[Frame] = []
    at = 0
    while len(data) - at >= 2:
        length = data[at + 1] & 0x7F
        body = at + 2
        if length == 126:
            body += 2
            length = int.from_bytes(data[at + 2 : body])
        elif length == 127:
            body += 8
            length = int.from_bytes(data[at + 2 : body])
        key = b""
        if data[at + 1] & MASKED:
            key = bytes(data[body : body + 4])
            body += 4
        if len(data) < body + length:
            break
        payload = bytes(data[body : body + (min(length, unmask) if key else length)])
        frames.append(Frame(data[at] & 0x0F, bool(data[at] & FIN), masked(payload, key) if key else payload))
        at = body + length
    return frames, at


def accept_key(key: bytes) -> bytes:
    """`Sec-WebSocket-Accept` for a `Sec-WebSocket-Key` (section 4.2.2)."""
    return base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())
