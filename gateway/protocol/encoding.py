"""Content encodings of request bodies, decoded within a bound.

RFC 9110 section 8.4.1 names gzip and deflate, RFC 8878 and 9659 zstd. Everything is decoded in small steps,
so that a body which unfolds to more than the limit is refused before it takes the memory.
"""

from __future__ import annotations

import io
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

from gateway.errors import InvalidBody

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_CODINGS = 4
"""Encodings applied one after the other; each is another pass over the body, and no client needs many."""

MAX_MEMBERS = 1024
"""gzip members or zstd frames in one body; tiny ones cost far more time than their bytes suggest."""

_STEP = 64 * 1024

# RFC 9659 section 3: a sender may not ask a receiver for a window of more than 8 MiB.
_ZSTD_WINDOW_LOG = 23


class _Member(Protocol):
    """One compressed member; `rest` holds what was fed beyond its end."""

    @property
    def ended(self) -> bool: ...

    @property
    def rest(self) -> bytes: ...

    def decode(self, data: bytes) -> Iterator[bytes]: ...


class _ZlibMember:
    def __init__(self, window_bits: int) -> None:
        self._stream = zlib.decompressobj(window_bits)

    @property
    def ended(self) -> bool:
        return self._stream.eof

    @property
    def rest(self) -> bytes:
        return self._stream.unused_data

    def decode(self, data: bytes) -> Iterator[bytes]:
        while True:
            piece = self._stream.decompress(data, _STEP)
            yield piece
            data = self._stream.unconsumed_tail
            if not data and len(piece) < _STEP:
                return


class _ZstdMember:
    def __init__(self) -> None:
        self._stream = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG})

    @property
    def ended(self) -> bool:
        return self._stream.eof

    @property
    def rest(self) -> bytes:
        return self._stream.unused_data

    def decode(self, data: bytes) -> Iterator[bytes]:
        while True:
            yield self._stream.decompress(data, _STEP)
            data = b""
            if self._stream.eof or self._stream.needs_input:
                return


def _gzip_member(head: bytes) -> _Member:
    return _ZlibMember(16 + zlib.MAX_WBITS)


def _deflate_member(head: bytes) -> _Member:
    """The zlib format, as RFC 9110 has it, or the bare deflate data that many senders took the name for."""
    is_zlib = len(head) >= 2 and head[0] & 0x0F == 8 and (head[0] << 8 | head[1]) % 31 == 0
    return _ZlibMember(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)


def _zstd_member(head: bytes) -> _Member:
    return _ZstdMember()


_CODINGS: dict[str, Callable[[bytes], _Member]] = {
    "gzip": _gzip_member,
    "x-gzip": _gzip_member,
    "deflate": _deflate_member,
    "zstd": _zstd_member,
}

# Formats that may consist of several members in a row (RFC 1952 section 2.2, RFC 8878 section 3).
_REPEATABLE = frozenset({"gzip", "x-gzip", "zstd"})


def decode_content(raw: bytes, encodings: str | None, limit: int) -> bytes:
    """`raw` with the codings of a `Content-Encoding` header undone, the last one first.

    Raises InvalidBody with code `body_too_large` if the body is, or unfolds to, more than `limit` bytes,
    `unsupported_content_encoding` for a coding that is not known or for too many, and
    `invalid_content_encoding` for data that is corrupt, cut short, or followed by something else.
    """
    names = [name.strip().lower() for name in (encodings or "").split(",")]
    codings = [name for name in names if name not in ("", "identity")]
    _check_codings(codings)
    _check_size(len(raw), limit)
    for coding in reversed(codings):
        raw = _decode(coding, raw, limit)
    return raw


def _check_codings(codings: list[str]) -> None:
    unknown = [coding for coding in codings if coding not in _CODINGS]
    if unknown:
        raise InvalidBody(
            f"The content encoding {unknown[0][:40]!r} is not supported; "
            "send the body as zstd, gzip or deflate, or without an encoding.",
            code="unsupported_content_encoding",
        )
    if len(codings) > MAX_CODINGS:
        raise InvalidBody(
            f"The body has {len(codings)} content encodings, more than the {MAX_CODINGS} that are undone; "
            "send it with one.",
            code="unsupported_content_encoding",
        )


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise InvalidBody(
            f"The request body is larger than {limit} bytes, the limit that GATEWAY_MAX_BODY_BYTES sets; "
            "send less, or ask the operator to raise it.",
            code="body_too_large",
        )


def _decode(coding: str, raw: bytes, limit: int) -> bytes:
    # BytesIO gives its buffer away without a copy, so the decoded body exists once.
    decoded = io.BytesIO()
    members = _Members(coding, raw[:2])
    try:
        for start in range(0, len(raw), _STEP):
            for piece in members.decode(raw[start : start + _STEP]):
                _check_size(decoded.tell() + len(piece), limit)
                decoded.write(piece)
    except (zlib.error, zstd.ZstdError) as error:
        raise _broken(coding, str(error)) from error
    if not members.ended:
        raise _broken(coding, "it ends in the middle")
    return decoded.getvalue()


class _Members:
    """The members of one body in a row."""

    def __init__(self, coding: str, head: bytes) -> None:
        self._coding = coding
        self._member = _CODINGS[coding](head)
        self._count = 1

    @property
    def ended(self) -> bool:
        return self._member.ended

    def decode(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._member.ended:
                self._begin_next(data)
            yield from self._member.decode(data)
            data = self._member.rest

    def _begin_next(self, head: bytes) -> None:
        if self._coding not in _REPEATABLE:
            raise _broken(self._coding, "more data follows its end")
        if self._count == MAX_MEMBERS:
            raise _broken(self._coding, f"it has more than {MAX_MEMBERS} members")
        self._member = _CODINGS[self._coding](head)
        self._count += 1


def _broken(coding: str, why: str) -> InvalidBody:
    return InvalidBody(
        f"The request body is not valid {coding} data: {why}. Send it whole, or without an encoding.",
        code="invalid_content_encoding",
    )
