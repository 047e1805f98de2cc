"""One turn's frames on a client's WebSocket."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.consumers.websocket_sink import WebSocketSink
from gateway.consumers.wire import ClientWire
from gateway.protocol.events import Event, read_event
from gateway.turns.answers import USAGE_LIMIT, Answer
from gateway.turns.request import Route
from tests.gateway.consumers.asgi import Server

INTERVAL = 15.0
TUNABLES = Tunables(keepalive_interval=INTERVAL)
LOST = Answer(503, "server_error", "upstream_connection_lost", "Lost.", headers={"retry-after": "2"}, lost=True)


def event(**members: object) -> Event:
    return read_event(json.dumps(members).encode())


LIMITS = event(type="codex.rate_limits", rate_limits={})
CREATED = event(type="response.created", sequence_number=0, response={"id": "resp_1"})
COMPLETED = event(type="response.completed", sequence_number=1, response={"id": "resp_1"})


class Socket:
    def __init__(self, route: Route) -> None:
        self.server = Server()
        self.wire = ClientWire(self.server.send, TUNABLES, self.server.buffered, self.server.write)
        self.sink = WebSocketSink(self.wire, route, TUNABLES, Clock())

    @property
    def frames(self) -> list[dict[str, Any]]:
        return [json.loads(message["text"]) for message in self.server.sent]

    @property
    def types(self) -> list[str]:
        return [frame["type"] for frame in self.frames]

    async def silence(self, seconds: float) -> None:
        self.sink.tick(self.wire.sent_at + seconds)
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
async def codex() -> Socket:
    return Socket(Route.CODEX)


@pytest.fixture
async def v1() -> Socket:
    return Socket(Route.V1)


async def test_every_event_is_a_text_frame_with_its_own_bytes(codex: Socket):
    text = '{"type":"response.output_text.delta",  "delta":"é\u2028"}'
    await codex.sink.deliver([read_event(text.encode())])
    assert codex.server.sent == [{"type": "websocket.send", "text": text}]


async def test_plain_events_pass_at_once_when_the_sequence_is_known(codex: Socket):
    delta = event(type="response.output_text.delta", delta="é", sequence_number=1)
    assert not codex.sink.pass_on([delta]), "the first numbered event is looked for"
    await codex.sink.deliver([CREATED])
    assert codex.sink.pass_on([delta, delta])
    assert codex.types == ["response.created"] + ["response.output_text.delta"] * 2


async def test_what_passes_at_once_is_valid_text_like_everything_else(codex: Socket):
    await codex.sink.deliver([CREATED])
    assert codex.sink.pass_on([read_event(b'{"type":"response.output_text.delta","delta":"\xff"}')])
    assert codex.frames[-1]["delta"] == "\ufffd"


async def test_nothing_passes_between_the_parts_of_a_keepalive_or_before_a_client_that_waits(codex: Socket):
    await codex.sink.deliver([CREATED])
    codex.server.fill()
    await codex.silence(INTERVAL)
    assert not codex.sink.pass_on([CREATED])
    codex.server.free.set()
    await asyncio.sleep(0.001)
    assert codex.sink.pass_on([CREATED])
    assert codex.types == ["response.created", "keepalive", "response.created"]


async def test_metadata_passes_as_events_for_codex_and_the_codex_backends_own_do_not_on_v1(codex: Socket, v1: Socket):
    for socket in (codex, v1):
        socket.sink.upstream_headers({"x-codex-turn-state": "s"})
        await socket.sink.deliver([LIMITS, event(type="response.metadata", headers={}), CREATED])
    assert codex.types == ["codex.rate_limits", "response.metadata", "response.created"]
    assert v1.types == ["response.metadata", "response.created"]


async def test_a_loss_before_anything_sequenced_is_response_failed_and_the_socket_stays(codex: Socket):
    await codex.sink.deliver([LIMITS])
    await codex.sink.refuse(LOST)
    failed = codex.frames[-1]
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"]["code"] == "upstream_connection_lost"
    assert failed["response"]["id"] is None
    assert not codex.sink.must_close


@pytest.mark.parametrize("answer", [LOST, Answer(400, "invalid_request_error", "c", "m")])
async def test_after_a_sequenced_event_only_a_close_can_end_the_turn(codex: Socket, answer: Answer):
    await codex.sink.deliver([CREATED])
    await codex.sink.refuse(answer)
    assert codex.types == ["response.created"]
    assert codex.sink.must_close


async def test_a_refusal_is_an_error_frame(codex: Socket):
    await codex.sink.refuse(Answer(429, USAGE_LIMIT, None, "Spent.", extra={"resets_at": 5}))
    (frame,) = codex.frames
    assert (frame["type"], frame["status"]) == ("error", 429)
    assert (frame["error"]["type"], frame["error"]["resets_at"]) == (USAGE_LIMIT, 5)
    assert not codex.sink.must_close


async def test_a_silence_is_broken_by_a_frame_for_codex_and_by_pings_alone_on_v1(codex: Socket, v1: Socket):
    for socket in (codex, v1):
        await socket.silence(INTERVAL - 1)
        assert socket.frames == []
        await socket.silence(INTERVAL)
    assert codex.frames == [{"type": "keepalive"}]
    assert v1.frames == []


async def test_a_keepalive_is_not_sequenced(codex: Socket):
    await codex.silence(INTERVAL)
    await codex.sink.refuse(LOST)
    assert codex.types == ["keepalive", "response.failed"]


async def test_a_keepalive_that_is_being_sent_is_finished_before_the_next_frame_and_none_follows_the_end(codex: Socket):
    codex.server.fill()
    await codex.silence(INTERVAL)
    ending = asyncio.ensure_future(codex.sink.end_silence())
    await asyncio.sleep(0)
    assert not ending.done()
    codex.server.free.set()
    await ending
    await codex.sink.deliver([COMPLETED])
    await codex.silence(10 * INTERVAL)
    assert codex.types == ["keepalive", "response.completed"]


async def test_bytes_that_are_no_utf8_do_not_break_the_stream(codex: Socket):
    await codex.sink.deliver([read_event(b'{"type":"x","delta":"\xff"}')])
    assert codex.frames == [{"type": "x", "delta": "\ufffd"}]


@pytest.mark.parametrize("sequenced", [True, False])
async def test_a_delivery_or_an_answer_that_is_broken_off_can_only_be_ended_by_a_close(codex: Socket, sequenced: bool):
    if sequenced:
        await codex.sink.deliver([CREATED])
    assert not codex.sink.must_close
    codex.server.fill()
    telling = asyncio.ensure_future(codex.sink.refuse(LOST) if not sequenced else codex.sink.deliver([COMPLETED]))
    await asyncio.sleep(0)
    telling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await telling
    assert codex.sink.must_close
