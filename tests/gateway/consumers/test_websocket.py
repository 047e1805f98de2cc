"""A client's WebSocket: its turns one after the other, and nothing left when it ends."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator

import pytest

from gateway.conf import Tunables
from gateway.consumers.websocket import MAX_QUEUED
from gateway.upstream.connection import MAX_FRAME
from tests.gateway.consumers.asgi import CODEX, V1, Edge, SocketClient, edge, frame

DENIAL = {"websocket.http.response": {}}


@pytest.fixture
async def made() -> AsyncIterator[Edge]:
    async with edge() as made:
        yield made


async def leave(client: SocketClient) -> None:
    client.leave()
    await client.ended()


def errors(client: SocketClient) -> list[tuple[int, str]]:
    return [(each["status"], each["error"]["code"]) for each in client.frames if each["type"] == "error"]


# The handshake


async def test_an_accepted_socket_is_told_the_largest_frame(made: Edge):
    client = await made.socket()
    assert client.sent == [
        {"type": "websocket.accept", "headers": [(b"x-codex-websocket-max-message-bytes", b"%d" % (MAX_FRAME - 1))]}
    ]
    assert MAX_FRAME - 1 == 16_777_215
    await leave(client)


async def test_without_a_valid_key_the_handshake_is_401_where_the_server_can_say_so(made: Edge):
    client = await made.socket(extensions=DENIAL, authorization="Bearer pm_1_2")
    await client.ended()
    start, rest = client.sent
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 401)
    assert (b"www-authenticate", b"Bearer") in start["headers"]
    assert json.loads(rest["body"])["error"]["code"] == "invalid_api_key"


async def test_without_a_valid_key_the_handshake_is_refused_everywhere(made: Edge):
    client = await made.socket(authorization="")
    await client.ended()
    assert client.sent == [{"type": "websocket.close", "code": 1008}]


async def test_where_every_account_speaks_http_alone_the_handshake_is_426_so_that_the_client_goes_there_at_once():
    async with edge(transport="http") as made:
        client = await made.socket(extensions=DENIAL)
        await client.ended()
    assert client.sent[0]["status"] == 426


async def test_a_client_that_leaves_before_it_is_accepted_is_no_error(made: Edge):
    client = SocketClient(made.app, made.scope("websocket", CODEX))
    client.left = True
    client.say({"type": "websocket.connect"})
    await client.ended()


# Turns


async def test_turns_run_in_order_one_at_a_time(made: Edge):
    client = await made.socket()
    for number in range(3):
        await client.frame(frame(str(number)))
    await client.has("response.completed", 3)
    types = [each["type"] for each in client.frames]
    assert types.count("response.created") == 3
    for before, after in itertools.pairwise(types):
        if after == "codex.rate_limits":
            assert before == "response.completed"
    turns = await made.settled()
    assert [turn["outcome"] for turn in turns] == ["completed"] * 3
    # Full requests on one socket use one lane after the other's end.
    assert len({request.connection for request in made.upstream.observed.requests}) == 1
    await leave(client)


async def test_metadata_of_the_codex_backend_is_not_sent_on_v1(made: Edge):
    client = await made.socket(V1)
    await client.frame(frame())
    await client.has("response.completed")
    assert "codex.rate_limits" not in [each["type"] for each in client.frames]
    await leave(client)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"{}", "binary_frame"),
        ('{"type":"response.cancel"}', "unknown_frame_type"),
        ("{}", "unknown_frame_type"),
        ("{", "invalid_json"),
        ("[]", "invalid_body"),
    ],
)
async def test_a_frame_that_is_no_request_costs_an_error_frame_and_nothing_else(
    made: Edge, sent: str | bytes, code: str
):
    client = await made.socket()
    await client.frame(sent)
    await client.has("error")
    assert errors(client) == [(400, code)]
    await client.frame(frame())
    await client.has("response.completed")
    assert len(await made.settled()) == 1
    assert made.runtime.permits.held == 0
    await leave(client)


async def test_turn_state_of_the_handshake_belongs_to_no_request(made: Edge):
    client = await made.socket(x_codex_turn_state="of-the-handshake")
    await client.frame(frame())
    await client.has("response.completed")
    metadata = next(event for event in client.frames if event["type"] == "response.metadata")
    issued = metadata["headers"]["x-codex-turn-state"]
    await client.frame(frame(client_metadata={"x-codex-turn-state": issued}))
    await client.has("response.completed", 2)
    seen = made.upstream.observed.requests
    assert [request.body and request.body.turn_state for request in seen] == [None, issued]
    assert "x-codex-turn-state" not in seen[0].header_names
    await leave(client)


# Floods


async def test_more_waiting_frames_than_allowed_end_the_socket(made: Edge):
    made.upstream.faults.add("silent")
    client = await made.socket()
    for _ in range(1 + MAX_QUEUED):
        await client.frame(frame())
    await made.upstream.until(lambda seen: seen.running == 1)
    assert errors(client) == []
    await client.frame(frame())
    await client.ended()
    assert errors(client) == [(400, "too_many_frames")]
    assert client.closes == [1008]
    await made.upstream.until(lambda seen: not seen.running)
    (turn,) = await made.settled()
    assert turn["outcome"] == "client_gone"


async def test_more_waiting_bytes_than_one_request_may_have_end_the_socket():
    async with edge(faults=("silent",), tunables=Tunables(max_body_bytes=2000, close_timeout=0.5)) as made:
        client = await made.socket()
        await client.frame(frame())
        await made.upstream.until(lambda seen: seen.running == 1)
        await client.frame(frame("x" * 900))
        await client.frame(frame("x" * 1100))
        await client.ended()
        assert errors(client) == [(400, "too_many_frames")]
        assert client.closes == [1008]


# The end


async def test_a_client_that_leaves_takes_its_turn_its_queue_and_its_lane_along(made: Edge):
    made.upstream.faults.add("silent_after_created#1")
    client = await made.socket()
    await client.frame(frame())
    await client.frame(frame())
    await client.has("response.created")
    await leave(client)
    await made.upstream.until(lambda seen: not seen.open_sockets)
    turns = await made.settled()
    assert [turn["outcome"] for turn in turns] == ["client_gone"]
    assert list(made.runtime.pool) == []
    assert made.runtime.permits.held == 0
    assert not made.runtime.gate.sockets


async def test_an_idle_client_that_leaves_takes_its_lane_along(made: Edge):
    client = await made.socket()
    await client.frame(frame())
    await client.has("response.completed")
    await made.settled()
    assert len(list(made.runtime.pool)) == 1
    await leave(client)
    assert list(made.runtime.pool) == []
    await made.upstream.until(lambda seen: not seen.open_sockets)


async def test_when_only_a_close_can_end_a_turn_the_socket_is_closed_with_1011(made: Edge):
    made.upstream.faults.add("reset/5")
    client = await made.socket()
    await client.frame(frame())
    await client.frame(frame())
    await client.ended()
    assert client.closes == [1011]
    assert "response.failed" not in [each["type"] for each in client.frames]
    assert len(await made.settled()) == 1, "what waited behind it is for the client to send again"


async def test_a_client_that_takes_nothing_is_cut_and_its_next_frame_is_not_run():
    tunables = Tunables(client_stall_timeout=0.05, close_timeout=0.05)
    async with edge(tunables=tunables) as made:
        client = await made.socket()
        client.takes.clear()
        await client.frame(frame())
        await client.frame(frame())
        await client.ended()
        assert client.closes == [1008]
        (turn,) = await made.settled()
        assert (turn["outcome"], turn["code"]) == ("client_gone", "client_stalled")
        assert list(made.runtime.pool) == []


async def test_a_socket_that_is_drained_while_idle_is_closed_with_1012(made: Edge):
    client = await made.socket()
    await asyncio.sleep(0)
    (socket,) = made.runtime.gate.sockets
    socket.drain()
    await client.ended()
    assert client.closes == [1012]


async def test_a_socket_that_is_drained_while_it_runs_a_turn_is_closed_after_it(made: Edge):
    made.upstream.faults.add("slow:0.01")
    client = await made.socket()
    await client.frame(frame())
    await client.has("response.created")
    (socket,) = made.runtime.gate.sockets
    socket.drain()
    await client.ended()
    assert client.frames[-1]["type"] == "response.completed"
    assert client.closes == [1012]


async def test_a_server_that_ends_the_application_has_its_turn_settled_first(made: Edge):
    made.upstream.faults.add("silent")
    client = await made.socket()
    await client.frame(frame())
    await made.upstream.until(lambda seen: seen.running == 1)
    client.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await client.ended()
    assert errors(client) == [(503, "gateway_stopping")]
    (turn,) = await made.settled()
    assert turn["outcome"] == "refused"
    assert list(made.runtime.pool) == []
