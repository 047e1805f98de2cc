"""Chunks that are there are taken together, and none is lost, whatever happens in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.upstream.chunks import ReadyChunks
from gateway.upstream.network import Arrival, Pipe


class Body:
    """Chunks that come when they are told to, and then the end, which may be an error."""

    def __init__(self, end: Exception | None = None) -> None:
        self.queue: list[bytes] = []
        self.over = False
        self.end = end
        self.tidied = 0
        self._more: Arrival | None = None

    def come(self, *chunks: bytes, over: bool = False) -> None:
        self.queue += chunks
        self.over = over
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while True:
                while self.queue:
                    yield self.queue.pop(0)
                if self.over:
                    break
                self._more = Arrival()
                await self._more
            if self.end is not None:
                raise self.end
        finally:
            await asyncio.sleep(0)
            self.tidied += 1


async def test_what_is_there_is_taken_together_and_the_end_is_nothing() -> None:
    body = Body()
    chunks = ReadyChunks(aiter(body))
    body.come(b"a", b"b", b"c")
    assert await chunks.take() == b"abc"
    body.come(b"d", over=True)
    assert await chunks.take() == b"d"
    assert (await chunks.take(), await chunks.take()) == (b"", b"")
    assert body.tidied == 1


@pytest.mark.parametrize(("last_read", "taken"), [(5 + len(b"5\r\n\r\n"), b"hello"), (100, b"hello, hello")])
async def test_after_a_read_that_had_one_chunk_no_other_is_asked_for(last_read: int, taken: bytes) -> None:
    body, pipe = Body(), Pipe()
    chunks = ReadyChunks(aiter(body), pipe=pipe)
    body.come(b"hello", b", hello")
    pipe.last_read = last_read
    assert await chunks.take() == taken


async def test_no_more_is_joined_than_the_limit_and_one_chunk() -> None:
    body = Body()
    chunks = ReadyChunks(aiter(body), most_joined=4)
    body.come(b"abc", b"def", b"g")
    assert await chunks.take() == b"abcdef"
    assert await chunks.take() == b"g"
    await chunks.close()


async def test_with_a_limit_of_nothing_no_read_is_begun_ahead() -> None:
    body = Body()
    chunks = ReadyChunks(aiter(body), most_joined=0)
    body.come(b"a", b"b")
    assert (await chunks.take(), body.queue) == (b"a", [b"b"])


async def test_an_error_comes_after_what_was_there_before_it() -> None:
    body = Body(end=ConnectionResetError("lost"))
    chunks = ReadyChunks(aiter(body))
    body.come(b"a", over=True)
    assert await chunks.take() == b"a"
    with pytest.raises(ConnectionResetError, match="lost"):
        await chunks.take()


async def test_a_taker_that_is_cancelled_ends_the_iterator_and_is_cancelled() -> None:
    body = Body()
    chunks = ReadyChunks(aiter(body))
    body.come(b"a")
    assert await chunks.take() == b"a"
    taking = asyncio.ensure_future(chunks.take())
    await asyncio.sleep(0)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert body.tidied == 1


async def test_what_was_begun_ahead_is_ended_by_close() -> None:
    body = Body()
    chunks = ReadyChunks(aiter(body))
    body.come(b"a")
    assert await chunks.take() == b"a"
    assert body.tidied == 0
    await chunks.close()
    assert body.tidied == 1


async def test_what_an_error_leaves_to_be_done_is_done_at_once_in_the_task_that_met_it() -> None:
    body = Body(end=ConnectionResetError("lost"))
    chunks = ReadyChunks(aiter(body))
    body.come(b"a", over=True)
    assert (await chunks.take(), body.tidied) == (b"a", 1)
    await asyncio.create_task(chunks.close())
    with pytest.raises(ConnectionResetError, match="lost"):
        await chunks.take()


async def test_a_close_that_is_cancelled_says_so() -> None:
    body = Body()
    chunks = ReadyChunks(aiter(body))
    body.come(b"a")
    await chunks.take()
    closing = asyncio.ensure_future(chunks.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing


@given(st.lists(st.lists(st.binary(min_size=1, max_size=6), max_size=5), max_size=12), st.integers(0, 12))
@settings(max_examples=60, deadline=None)
def test_nothing_is_lost_and_nothing_changes_places_however_it_comes(bursts: list[list[bytes]], most: int) -> None:
    async def taken() -> bytes:
        body = Body()
        chunks = ReadyChunks(aiter(body), most)

        async def come() -> None:
            for burst in bursts:
                body.come(*burst)
                await asyncio.sleep(0)
            body.come(over=True)

        coming = asyncio.ensure_future(come())
        whole = b""
        while some := await chunks.take():
            whole += some
        await coming
        return whole

    assert asyncio.run(taken()) == b"".join(chunk for burst in bursts for chunk in burst)
