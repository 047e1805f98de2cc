"""The chunks of a streamed body, as many at once as are there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from typing import Any

from gateway.upstream.network import Arrival, Pipe

# As many bytes as httpcore reads at a time.
MOST_JOINED = 64 * 1024
# Bytes around a chunk (RFC 9112 section 7.1): two line ends, and the size in up to eight digits.
FRAMING = 12


class ReadyChunks:
    """Takes what an iterator of chunks has without waiting.

    httpcore hands over one chunk at a time, in which an upstream mostly sends one event, and one in full flow has many
    of them in each read. So after a chunk the iterator is asked for another one, until it waits for an `Arrival`; the
    next `take`, or the `close`, goes on from there, in whichever task. Whatever else it may wait for, such as the end
    of a connection that has failed, is waited for at once: httpcore does so within cancel scopes, which belong to a
    task.

    Chunks are joined until they have `most_joined` bytes; 0 joins none, for connections that do not wait for an
    `Arrival`. With the `pipe` that they come through, nothing is asked for where the last read had no room for
    more than one chunk and a tiny one. Await `close` before what is iterated is closed.
    """

    def __init__(self, chunks: AsyncIterator[bytes], most_joined: int = MOST_JOINED, pipe: Pipe | None = None) -> None:
        self._chunks = chunks
        self._most_joined = most_joined
        self._pipe = pipe
        self._begun: _Begun | None = None
        self._ended: Exception | None = None

    async def take(self) -> bytes:
        """What is there, at least one chunk; nothing at the end of the body. What the iterator raises comes through."""
        begun, self._begun = self._begun, None
        try:
            if self._ended is not None:
                raise self._ended
            first = await (anext(self._chunks) if begun is None else begun)
        except StopAsyncIteration as end:
            self._ended = end
            return b""
        size = len(first)
        if self._pipe is not None and self._pipe.last_read <= size + FRAMING:
            return first
        ready = [first]
        while size < self._most_joined and (chunk := await self._next_ready()):
            ready.append(chunk)
            size += len(chunk)
        return first if len(ready) == 1 else b"".join(ready)

    async def _next_ready(self) -> bytes:
        """One more chunk; nothing when that has still to arrive, or there is none."""
        steps = anext(self._chunks).__await__()
        try:
            begun = _Begun(steps, next(steps))
            if not begun.waits_for_arrival:
                return await begun
            self._begun = begun
        except StopIteration as done:
            return bytes(done.value)
        except Exception as end:  # noqa: BLE001 - the next `take` raises it: what came before is good
            self._ended = end
        return b""

    async def close(self) -> None:
        """End what has been begun; nothing can be taken any more."""
        begun, self._begun = self._begun, None
        if begun is not None:
            await begun.give_up()


class _GivenUp(BaseException):
    """Nobody wants the chunk that is waited for. No cancellation, which would be mistaken for one of the task."""


class _Begun:
    """A step of an iterator that waits for something. Awaiting it goes on where it stopped."""

    def __init__(self, steps: Generator[Any, Any, bytes], awaited: object) -> None:
        self._steps = steps
        self._awaited = awaited

    @property
    def waits_for_arrival(self) -> bool:
        return isinstance(self._awaited, Arrival)

    def __await__(self) -> Generator[Any, Any, bytes]:
        while True:
            raised: BaseException | None = None
            try:
                woken = yield self._awaited
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is meant for who waits inside
                raised = error
            try:
                self._awaited = self._steps.send(woken) if raised is None else self._steps.throw(raised)
            except StopIteration as done:
                return bytes(done.value)

    async def give_up(self) -> None:
        """Let it end what it has begun."""
        try:
            self._awaited = self._steps.throw(_GivenUp())
            await self
        except (_GivenUp, StopIteration, StopAsyncIteration):
            pass
