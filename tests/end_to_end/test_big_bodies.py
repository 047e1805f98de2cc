"""Megabytes in one request and in one event pass unchanged; what is over a limit is 400 and says which."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from backports import zstd
from websockets.asyncio.client import ClientConnection

from gateway.simulator import Simulator
from gateway.simulator.envelope import Envelope
from gateway.simulator.script import text_delta
from tests.end_to_end.clients import CODEX, V1, data_of, frame, post, read_turn, socket, sse, turn
from tests.support.processes import GatewayProcess, Installation

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

MIB = 1024 * 1024
LIMIT = 18 * MIB
REQUEST = 12 * MIB
EVENT = 10 * MIB


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def recorder() -> AsyncIterator[Simulator]:
    """An upstream that keeps what it gets, byte by byte."""
    async with Simulator(keep_bodies=True) as upstream:
        yield upstream


@pytest.fixture(autouse=True)
def forgotten(recorder: Simulator) -> None:
    recorder.faults.clear()
    recorder.observed.clear()


Serve = Callable[..., Iterator[GatewayProcess]]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory, template: Installation, recorder: Simulator) -> Serve:
    def make(*options: str) -> Iterator[GatewayProcess]:
        installation = template.copy(Path(tmp_path_factory.mktemp("big")) / "data")
        installation.add_account("ada", recorder.url, *options)
        yield from installation.serve(GATEWAY_MAX_BODY_BYTES=str(LIMIT))

    return make


@pytest.fixture(scope="module")
def gateway(serve: Serve) -> Iterator[GatewayProcess]:
    """Its account is reached over HTTP, and over lanes for the clients' WebSockets."""
    yield from serve()


@pytest.fixture(scope="module")
def lanes_gateway(serve: Serve) -> Iterator[GatewayProcess]:
    """Its account is reached over lanes alone."""
    yield from serve("--transport", "websocket")


def big_input(size: int) -> bytes:
    """JSON text of `size` bytes, with characters of every length and unusual spacing that nobody may tidy up."""
    start, end = b'[ {"role":"user",  "content":"', b'"} ]'
    pattern = "a\\n\\u00e9é€\U0001f600".encode()
    room = size - len(start) - len(end)
    return start + (pattern * (room // len(pattern))).ljust(room, b".") + end


def big_request(size: int, type_of_frame: bytes = b"", more: bytes = b"") -> bytes:
    """A request with an input of `size` bytes."""
    return b'{%b"model":"gpt-5.5", "stream":true, "store":false, "input":%b%b}' % (type_of_frame, big_input(size), more)


CREATE = b'"type":"response.create",'


def raw_of_last(recorder: Simulator) -> bytes:
    raw = recorder.observed.requests[-1].raw
    assert raw is not None
    return raw


def expected_delta(recorder: Simulator, received: bytes) -> bytes:
    """The big event as the upstream sent it; only its place in the stream is taken from what was received."""
    response_id = recorder.observed.requests[-1].response_id
    assert response_id is not None
    envelope = Envelope(response_id, response_id.removeprefix("resp_"), "ada", "gpt-5.5", 0)
    return text_delta(envelope, EVENT).payload(json.loads(received)["sequence_number"])


def big_event_of(events: list[bytes]) -> bytes:
    (event,) = [event for event in events if len(event) > EVENT]
    return event


@pytest.mark.parametrize("path", [CODEX, V1])
async def test_a_big_request_and_a_big_event_pass_unchanged_over_sse_and_http(
    gateway: GatewayProcess, recorder: Simulator, path: str
):
    recorder.faults.add(f"big_event:{EVENT}#1~http")
    sent = big_request(REQUEST)
    answer = await post(gateway, sent, path)
    assert raw_of_last(recorder) == sent
    received = big_event_of(data_of(answer.content))
    assert received == expected_delta(recorder, received)
    assert sse(answer.content)[-1]["type"] == "response.completed"


async def test_a_big_request_and_a_big_event_pass_unchanged_over_sse_and_a_lane(
    lanes_gateway: GatewayProcess, recorder: Simulator
):
    recorder.faults.add(f"big_event:{EVENT}#1~websocket")
    answer = await post(lanes_gateway, big_request(REQUEST))
    # A frame needs a type, which is put in front; every value keeps its bytes.
    raw = raw_of_last(recorder)
    assert big_input(REQUEST) in raw
    assert json.loads(raw) == {**json.loads(big_request(REQUEST)), "type": "response.create"}
    received = big_event_of(data_of(answer.content))
    assert received == expected_delta(recorder, received)


async def test_a_big_request_and_a_big_event_pass_unchanged_over_a_websocket(
    gateway: GatewayProcess, recorder: Simulator
):
    recorder.faults.add(f"big_event:{EVENT}#1~websocket")
    sent = big_request(REQUEST, CREATE)
    async with socket(gateway) as connection:
        await connection.send(sent, text=True)
        events = await read_raw(connection)
    assert raw_of_last(recorder) == sent
    received = big_event_of(events)
    assert received == expected_delta(recorder, received)


async def read_raw(connection: ClientConnection) -> list[bytes]:
    events: list[bytes] = []
    while not events or b'"response.completed"' not in events[-1][:40]:
        events.append(await connection.recv(decode=False))
    return events


@pytest.mark.parametrize(
    ("coding", "compress"), [("gzip", gzip.compress), ("zstd", zstd.compress)], ids=["gzip", "zstd"]
)
async def test_a_compressed_big_body_reaches_the_upstream_as_it_was_before(
    gateway: GatewayProcess, recorder: Simulator, coding: str, compress: Callable[[bytes], bytes]
):
    sent = big_request(REQUEST)
    answer = await post(gateway, compress(sent), **{"content-encoding": coding})
    assert answer.status_code == 200
    assert raw_of_last(recorder) == sent


async def test_bodies_are_let_go_with_their_turns(gateway: GatewayProcess):
    async with socket(gateway) as connection:

        async def one_of_each() -> None:
            await post(gateway, big_request(REQUEST))
            await connection.send(big_request(REQUEST, CREATE), text=True)
            await read_raw(connection)

        # What a turn needs for a moment stays with the allocator, but not once more for every turn.
        await one_of_each()
        before = gateway.rss()
        for _ in range(4):
            await one_of_each()
    assert gateway.rss() - before < 4 * REQUEST


@pytest.mark.parametrize("path", [CODEX, V1])
async def test_a_body_over_the_limit_is_400_over_http(gateway: GatewayProcess, recorder: Simulator, path: str):
    answer = await post(gateway, big_request(LIMIT), path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "body_too_large")
    assert not recorder.observed.requests


async def test_a_frame_over_the_limit_is_400_on_a_websocket(gateway: GatewayProcess, recorder: Simulator):
    async with socket(gateway) as connection, asyncio.timeout(10):
        await connection.send(big_request(LIMIT, CREATE), text=True)
        (error,) = await read_turn(connection)
    assert (error["status"], error["error"]["code"]) == (400, "body_too_large")
    assert not recorder.observed.requests


async def test_a_full_input_over_16_mib_on_a_websocket_goes_upstream_over_http(
    gateway: GatewayProcess, recorder: Simulator
):
    since = gateway.ledger.mark()
    sent = big_request(16 * MIB, CREATE)
    async with socket(gateway) as connection:
        await connection.send(sent, text=True)
        events = await read_raw(connection)
    assert events
    assert big_input(16 * MIB) in raw_of_last(recorder)
    (row,) = gateway.ledger.settled(since)
    assert (row.downstream, row.upstream, row.outcome) == ("websocket", "http", "completed")


async def test_a_delta_over_16_mib_is_400_and_its_lane_goes_on(gateway: GatewayProcess, recorder: Simulator):
    async with socket(gateway) as connection:
        first = await turn(connection, frame())
        previous = b',"previous_response_id":"%b"' % first["response"]["id"].encode()
        await connection.send(big_request(16 * MIB, CREATE, previous), text=True)
        (error,) = await read_turn(connection)
        assert (error["status"], error["error"]["code"]) == (400, "body_too_large")
        after = await turn(connection, frame(previous_response_id=first["response"]["id"]))
    assert after["type"] == "response.completed"
    assert len(recorder.observed.requests) == 2
