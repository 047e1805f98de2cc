"""A request body as it comes in: charged to its permit chunk by chunk, bounded, and decoded once."""

from __future__ import annotations

import asyncio

from gateway.errors import GatewayError, InvalidBody
from gateway.protocol.encoding import decode_content
from gateway.turns.permits import Permit


class RequestBody:
    """Filled by the consumer's listener, read once by its responder."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: list[bytes] = []
        self._size = 0
        self._complete = False
        self._abort_error: GatewayError | None = None
        self._changed = asyncio.Event()

    def feed(self, chunk: bytes, *, more: bool) -> None:
        """A piece has arrived; beyond the limit nothing is kept, since it will be refused."""
        self._size += len(chunk)
        if self._size <= self._limit:
            self._chunks.append(chunk)
        self._complete = not more
        self._changed.set()

    def abort(self, error: GatewayError) -> None:
        """Wait for the rest no longer: whoever reads gets `error`, unless the body is complete."""
        self._abort_error = error
        self._changed.set()

    def goes_on_alone(self) -> bool:
        return False

    async def read(self, permit: Permit, encodings: str | None) -> bytes:
        """Wait for the whole body, charging it to `permit` as it grows, and decode it.

        Raises `InvalidBody` as soon as it cannot be carried, `Overloaded` when it cannot be held, and what it was
        aborted with.
        """
        while True:
            if self._size > self._limit:
                raise too_large(self._limit)
            permit.grow(self._size)
            if self._complete:
                break
            if self._abort_error is not None:
                raise self._abort_error
            self._changed.clear()
            await self._changed.wait()
        raw = b"".join(self._chunks)
        self._chunks = []
        if encodings is not None:
            raw = decode_content(raw, encodings, self._limit)
            permit.grow(len(raw))
        return raw


def declared_size(headers: dict[str, str], limit: int) -> int:
    """The size that `Content-Length` declares, 0 when it declares none; raises `InvalidBody` over `limit`."""
    text = headers.get("content-length", "0")
    size = int(text) if text.isascii() and text.isdigit() else 0
    if size > limit:
        raise too_large(limit)
    return size


def too_large(limit: int) -> InvalidBody:
    return InvalidBody(
        f"The request body is larger than {limit} bytes (GATEWAY_MAX_BODY_BYTES of this gateway).",
        code="body_too_large",
    )
