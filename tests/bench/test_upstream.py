from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.bench.answers import Shape
from tests.bench.requests import Endpoint, body, encode

SHORT = Shape(events=9, interval=0)


def url(upstream: Endpoint, scheme: str = "http") -> str:
    return f"{scheme}://{upstream.host}:{upstream.port}{upstream.path}"


def client() -> httpx.AsyncClient:
    return httpx.AsyncClient(trust_env=False, timeout=10)


def events_of(stream: str) -> list[dict[str, object]]:
    return [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: ")]


async def test_an_ordinary_client_reads_the_whole_answer_and_asks_again_on_the_same_connection(
    upstream: Endpoint,
) -> None:
    async with client() as http:
        answers = [await http.post(url(upstream), content=encode(body(SHORT, 5000))) for _ in range(2)]

    assert [len(events_of(answer.text)) for answer in answers] == [9, 9]
    assert answers[0].headers["content-type"].startswith("text/event-stream")


async def test_a_body_in_chunks_is_answered_too(upstream: Endpoint) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield encode(body(SHORT, 5000))

    async with client() as http:
        answer = await http.post(url(upstream), content=chunks())

    assert len(events_of(answer.text)) == 9


async def test_a_websocket_client_gets_one_event_in_each_frame_turn_after_turn(upstream: Endpoint) -> None:
    frame = encode({"type": "response.create", **body(SHORT, 70_000)}).decode()
    async with connect(url(upstream, "ws"), proxy=None) as socket:
        for _ in range(2):
            await socket.send(frame)
            events = [json.loads(await socket.recv()) for _ in range(9)]
            assert events[-1]["type"] == "response.completed"
        await (await socket.ping())


async def test_a_fragmented_request_is_one_request(upstream: Endpoint) -> None:
    frame = encode({"type": "response.create", **body(SHORT, 5000)}).decode()
    async with connect(url(upstream, "ws"), proxy=None) as socket:
        await socket.send([frame[:1000], frame[1000:2000], frame[2000:]])
        events = [json.loads(await socket.recv()) for _ in range(9)]

    assert [event["sequence_number"] for event in events] == list(range(9))


async def test_paced_events_are_not_sent_before_their_time(upstream: Endpoint) -> None:
    async with client() as http:
        answer = await http.post(url(upstream), content=encode(body(Shape(events=9, interval=5), 5000)))

    stamps = [int(str(event.get("sent_at") or event["last_at"])) for event in events_of(answer.text)]
    # Timers of an event loop may be a millisecond early.
    assert (stamps[-1] - stamps[0]) / 1e6 >= 8 * 5 - 1


async def test_what_asks_for_no_shape_is_not_found_or_closed(upstream: Endpoint) -> None:
    async with client() as http:
        assert (await http.get(url(upstream))).status_code == 404

    async with connect(url(upstream, "ws"), proxy=None) as socket:
        await socket.send("{}")
        try:
            await socket.recv()
        except ConnectionClosed:
            return
    raise AssertionError("the socket stayed open")
