"""HTTP/1.1 responses as bytes (RFC 9112): the head, and how the body is framed. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from gateway.server.errors import reason_phrase

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_BREAKS_A_LINE = re.compile(rb"[\x00\r\n]")

# The server decides about these two (RFC 9112 sections 6 and 9); an application's own would contradict it.
_HOP_BY_HOP = frozenset({b"connection", b"transfer-encoding"})


class BodyEncoder(Protocol):
    """Turns pieces of a body into what goes on the wire."""

    def encode(self, data: bytes, more: bool) -> bytes:
        """The bytes for one piece; `more` is false for the last. Raises `ValueError` for a body over its length."""

    @property
    def complete(self) -> bool:
        """Whether the client can tell, after the last piece, that it has everything."""


class ChunkedBody:
    """A body of unknown length in chunks (RFC 9112 section 7.1)."""

    __slots__ = ()
    complete = True

    def encode(self, data: bytes, more: bool) -> bytes:
        if not data:
            return b"" if more else b"0\r\n\r\n"
        if more:
            return b"%x\r\n%b\r\n" % (len(data), data)
        return b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)


class SizedBody:
    """A body whose `Content-Length` the application declared."""

    __slots__ = ("_declared", "_left")

    def __init__(self, length: int) -> None:
        self._declared = self._left = length

    @property
    def complete(self) -> bool:
        return self._left == 0

    def encode(self, data: bytes, more: bool) -> bytes:
        if len(data) > self._left:
            raise ValueError(
                f"The response body is longer than its Content-Length of {self._declared} bytes; "
                "correct the header or leave it out."
            )
        self._left -= len(data)
        return data


class BodyUntilClose:
    """A body that ends with the connection, for HTTP/1.0 clients."""

    __slots__ = ()
    complete = True

    def encode(self, data: bytes, more: bool) -> bytes:
        return data


class NoBody:
    """HEAD, 204 and 304 have none, whatever the application sends (RFC 9110 section 6.4.1)."""

    __slots__ = ()
    complete = True

    def encode(self, data: bytes, more: bool) -> bytes:
        return b""


@dataclass(frozen=True, slots=True)
class RequestLine:
    """The first line of a request. `target` is the path without its query, as it came."""

    method: bytes
    target: bytes
    query: bytes
    version: bytes


def response_head(
    line: RequestLine, status: int, headers: Iterable[tuple[bytes, bytes]], *, closes: bool
) -> tuple[bytes, BodyEncoder]:
    """The status line and headers that answer `line`, and the encoder for the body that follows.

    `closes` says that the connection ends with this response. Raises `TypeError` for headers that are not bytes and
    `ValueError` for headers that would break the framing.
    """
    lines = [b"HTTP/1.1 %d %b" % (status, reason_phrase(status).encode())]
    length: int | None = None
    for name, value in headers:
        lowered = _checked(name, value)
        if lowered in _HOP_BY_HOP:
            continue
        if lowered == b"content-length":
            length = _declared_length(value)
        lines.append(b"%b: %b" % (name, value))
    encoder = _encoder(line, status, length)
    if isinstance(encoder, ChunkedBody):
        lines.append(b"Transfer-Encoding: chunked")
    if closes:
        lines.append(b"Connection: close")
    lines.append(b"\r\n")
    return b"\r\n".join(lines), encoder


def closes_connection(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether `headers` ask for the connection to end with their message."""
    return any(
        name.lower() == b"connection" and b"close" in value.lower().replace(b" ", b"").split(b",")
        for name, value in headers
    )


def _checked(name: bytes, value: bytes) -> bytes:
    if not isinstance(name, bytes) or not isinstance(value, bytes):
        raise TypeError(f"Header {name!r} must be a pair of bytes.")
    if not _TOKEN.fullmatch(name) or _BREAKS_A_LINE.search(value):
        raise ValueError(f"Header {name!r} holds bytes that no header may hold (RFC 9110 section 5).")
    return name.lower()


def _declared_length(value: bytes) -> int:
    if not value.isdigit():
        raise ValueError(f"Content-Length must be a whole number, not {value!r}.")
    return int(value)


def _encoder(line: RequestLine, status: int, length: int | None) -> BodyEncoder:
    if line.method == b"HEAD" or status in (204, 304):
        return NoBody()
    if length is not None:
        return SizedBody(length)
    return ChunkedBody() if line.version == b"HTTP/1.1" else BodyUntilClose()
