"""Request bodies as they were before `Content-Encoding`."""

from __future__ import annotations

import sys
import zlib

from gateway.simulator.refusal import Refusal, Refused

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

DECODED_LIMIT = 256 * 1024 * 1024


def decode_body(raw: bytes, encoding: str, limit: int = DECODED_LIMIT) -> bytes:
    """Undo one encoding; raises `Refused`: 415 if it is unknown, 400 for broken data, 413 over `limit` bytes."""
    match encoding.strip().lower():
        case "" | "identity":
            return raw
        case "zstd":
            decompress = _unzstd
        case "gzip":
            decompress = _gunzip
        case other:
            raise Refused(Refusal(415, f"The content encoding {other!r} is not supported; use zstd or gzip."))
    try:
        decoded, complete = decompress(raw, limit + 1)
    except (zlib.error, zstd.ZstdError) as error:
        raise Refused(Refusal(400, f"The body is not valid {encoding}: {error}.")) from error
    if len(decoded) > limit:
        raise Refused(Refusal(413, f"The decoded body is larger than {limit} bytes."))
    if not complete:
        raise Refused(Refusal(400, f"The {encoding} body ends too early."))
    return decoded


def _unzstd(raw: bytes, size: int) -> tuple[bytes, bool]:
    """At the most `size` bytes, and whether the data is complete."""
    decompressor = zstd.ZstdDecompressor()
    decoded: bytes = decompressor.decompress(raw, size)
    return decoded, decompressor.eof


def _gunzip(raw: bytes, size: int) -> tuple[bytes, bool]:
    decompressor = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    return decompressor.decompress(raw, size), decompressor.eof
