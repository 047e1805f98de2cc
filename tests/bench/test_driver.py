from __future__ import annotations

import asyncio

import pytest

from tests.bench.answers import Shape, pieces
from tests.bench.driver import Answer, TurnFailed, connect_sse, connect_websocket, take_chunks
from tests.bench.requests import Endpoint, body, create_frame, encode, http_request

PACED = Shape(events=12, interval=2)
UNPACED = Shape(events=300, interval=0)


async def test_turns_over_sse_are_read_to_the_end_on_one_connection(upstream: Endpoint) -> None:
    client = await connect_sse(upstream, "one")
    for shape in (PACED, UNPACED, PACED):
        request = http_request(upstream, "one", encode(body(shape, 50_000)))
        reading = await client.turn(request, shape.events)
        assert len(reading.travels) == shape.events
        assert 0 < reading.first < 5e9
        assert all(0 < travel < 5e9 for travel in reading.travels)
    client.close()


async def test_turns_on_a_websocket_are_read_to_the_end_on_one_connection(upstream: Endpoint) -> None:
    client = await connect_websocket(upstream, "one")
    for shape in (PACED, UNPACED, PACED):
        reading = await client.turn(create_frame(body(shape, 100_000)), shape.events)
        assert len(reading.travels) == shape.events
        assert 0 < reading.first < 5e9
    client.close()


async def test_an_answer_with_another_number_of_events_is_a_failure(upstream: Endpoint) -> None:
    client = await connect_sse(upstream, "one")
    with pytest.raises(TurnFailed, match="12 events came instead of 13"):
        await client.turn(http_request(upstream, "one", encode(body(PACED, 5000))), PACED.events + 1)
    client.close()


async def test_a_refusal_is_a_failure_that_says_what_was_answered(upstream: Endpoint) -> None:
    client = await connect_sse(upstream, "one")
    with pytest.raises(TurnFailed, match="404 Not Found"):
        await client.turn(http_request(upstream, "one", b"{}"), 9)
    client.close()


async def test_a_socket_that_is_closed_in_the_middle_is_a_failure(upstream: Endpoint) -> None:
    client = await connect_websocket(upstream, "one")
    with pytest.raises(TurnFailed, match="closed"):
        await client.turn(create_frame({"model": "no shape"}), 9)


async def test_an_error_frame_is_a_failure_at_once() -> None:
    ended = asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
        await reader.read(1)
        text = b'{"type":"error","status":503,"error":{"code":"gateway_full"}}'
        writer.write(bytes((0x81, len(text))) + text)
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1], "/")
        client = await connect_websocket(endpoint, "one")
        with pytest.raises(TurnFailed, match="gateway_full"):
            await client.turn(create_frame({}), 9)
        client.close()
        await ended.wait()


async def test_a_stamp_cut_in_two_is_found_once() -> None:
    event = pieces(1, 9, as_frames=False)[-1].stamped(5)
    for cut in range(len(event) + 1):
        answer = Answer()
        answer.take(event[:cut], 105)
        answer.take(event[cut:], 105)
        assert answer.reading.travels == [100]
        assert answer.got_last


def test_chunks_cut_anywhere_wait_for_their_rest() -> None:
    data = b"5\r\nfirst\r\n6;name=value\r\nsecond\r\n0\r\n\r\n"

    for cut in range(len(data)):
        first, rest, complete = take_chunks(data[:cut])
        assert not complete
        second, rest, complete = take_chunks(rest + data[cut:])
        assert (first + second, rest, complete) == (b"firstsecond", b"", True)
