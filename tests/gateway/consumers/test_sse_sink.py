"""Server-sent events: when the headers go out, what is in them, and what breaks a silence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.consumers.native import NativeStream
from gateway.consumers.sse_sink import SseSink
from gateway.consumers.wire import ClientWire
from gateway.errors import ClientLost
from gateway.protocol.events import Event, read_event
from gateway.protocol.sse import KEEPALIVE_COMMENT, KEEPALIVE_EVENT
from gateway.turns.answers import USAGE_LIMIT, Answer
from gateway.turns.request import Route
from tests.gateway.consumers.asgi import Server, events

HEADER_WAIT = 45.0
INTERVAL = 15.0
STALL = 60.0
TUNABLES = Tunables(header_wait=HEADER_WAIT, keepalive_interval=INTERVAL, client_stall_timeout=STALL)
REFUSED = Answer(503, "server_error", "upstream_busy", "Busy.", headers={"retry-after": "2"})


def event(**members: object) -> Event:
    return read_event(json.dumps(members).encode())


CREATED = event(type="response.created", sequence_number=0, response={"id": "resp_1"})
DELTA = event(type="response.output_text.delta", sequence_number=1, delta="a")
COMPLETED = event(type="response.completed", sequence_number=2, response={"id": "resp_1"})
LIMITS = event(type="codex.rate_limits", rate_limits={"primary": {"used_percent": 42}})
METADATA = event(type="response.metadata", headers={"x-codex-turn-state": "sealed", "openai-model": "m"})
ERROR = event(type="error", sequence_number=1, code="server_error", message="Broken.")


class Stream:
    """A sink on a fake server; `tick` calls it as the turn's timer would, so many seconds after it was made."""

    def __init__(self, route: Route) -> None:
        self.server = Server()
        self.wire = ClientWire(self.server.send, TUNABLES, self.server.buffered, self.server.write)
        self.sink = SseSink(self.wire, NativeStream(route, Clock()), TUNABLES)
        self.made_at = self.wire.sent_at

    async def tick(self, seconds: float) -> float:
        due = self.sink.tick(self.made_at + seconds)
        for _ in range(5):
            await asyncio.sleep(0)
        return due

    async def silence(self, seconds: float) -> float:
        """Tick so many seconds after the last send."""
        return await self.tick(self.wire.sent_at - self.made_at + seconds)

    @property
    def text(self) -> bytes:
        return b"".join(self.server.pieces)

    @property
    def types(self) -> list[str]:
        return [each["type"] for each in events(self.text)]


MakeStream = Callable[[Route], Stream]


@pytest.fixture
async def codex() -> Stream:
    return Stream(Route.CODEX)


@pytest.fixture
async def v1() -> Stream:
    return Stream(Route.V1)


# Events


async def test_plain_events_pass_at_once_in_one_piece_after_the_stream_has_begun(codex: Stream):
    assert not codex.sink.pass_on([DELTA])
    await codex.sink.deliver([CREATED])
    assert codex.sink.pass_on([DELTA, DELTA])
    assert codex.types == ["response.created"] + ["response.output_text.delta"] * 2
    assert len(codex.server.pieces) == 2


async def test_nothing_passes_while_a_keepalive_is_being_sent(codex: Stream):
    await codex.sink.deliver([CREATED])
    codex.server.fill()
    await codex.silence(INTERVAL)
    assert not codex.sink.pass_on([DELTA])
    codex.server.free.set()
    await asyncio.sleep(0.001)
    assert codex.sink.pass_on([DELTA])
    assert codex.types == ["response.created", "keepalive", "response.output_text.delta"]


# Headers


async def test_headers_wait_for_the_first_real_event(codex: Stream):
    codex.sink.upstream_headers({"x-request-id": "r", "set-cookie": "secret"})
    await codex.sink.deliver([LIMITS])
    await codex.sink.deliver([METADATA])
    assert codex.server.sent == []
    await codex.sink.deliver([CREATED])
    assert codex.server.status == 200
    assert codex.types == ["codex.rate_limits", "response.metadata", "response.created"]
    headers = codex.server.headers
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["x-request-id"] == "r"
    assert "set-cookie" not in headers


async def test_rate_limits_and_turn_state_that_come_before_become_headers_where_that_client_reads_them(codex: Stream):
    await codex.sink.deliver([LIMITS, METADATA, CREATED])
    headers = codex.server.headers
    assert headers["x-codex-primary-used-percent"] == "42"
    assert headers["x-codex-turn-state"] == "sealed"
    assert headers["openai-model"] == "m"


async def test_what_comes_after_the_headers_changes_none(codex: Stream):
    await codex.sink.deliver([CREATED])
    await codex.sink.deliver([LIMITS])
    assert "x-codex-primary-used-percent" not in codex.server.headers
    assert codex.types == ["response.created", "codex.rate_limits"]


async def test_a_refusal_before_the_headers_is_a_real_status(codex: Stream):
    await codex.sink.deliver([LIMITS])
    await codex.sink.refuse(REFUSED)
    assert codex.server.status == 503
    assert codex.server.headers["retry-after"] == "2"
    assert json.loads(codex.text)["error"]["code"] == "upstream_busy"
    assert codex.server.complete


async def test_an_event_passes_with_the_bytes_it_came_with(codex: Stream):
    block = b'event: response.created\nid: 7\ndata: {"type":"response.created",\ndata: "response":{}}\n\n'
    await codex.sink.deliver([read_event(b'{"type":"response.created",\n"response":{}}', block)])
    assert codex.text == block


# The end


@pytest.mark.parametrize("route", Route)
async def test_the_body_ends_with_the_terminal_event(route: Route):
    stream = Stream(route)
    await stream.sink.deliver([CREATED, DELTA])
    assert not stream.server.complete
    await stream.sink.end_silence()
    await stream.sink.deliver([COMPLETED])
    assert stream.server.complete
    assert stream.types == ["response.created", "response.output_text.delta", "response.completed"]


async def test_a_whole_response_at_once_is_one_write_after_the_headers(codex: Stream):
    await codex.sink.deliver([LIMITS, CREATED, DELTA, COMPLETED])
    assert [message["type"] for message in codex.server.sent] == ["http.response.start", "http.response.body"]


async def test_a_failure_after_the_headers_is_response_failed_with_the_responses_id_and_the_end(codex: Stream):
    await codex.sink.deliver([CREATED])
    await codex.sink.refuse(Answer(503, "server_error", "upstream_connection_lost", "Lost.", lost=True))
    failed = events(codex.text)[-1]
    assert failed["type"] == "response.failed"
    assert failed["response"]["id"] == "resp_1"
    assert failed["response"]["error"]["code"] == "upstream_connection_lost"
    assert codex.server.complete


async def test_a_failure_after_a_broken_silence_has_no_id_to_tell(codex: Stream):
    await codex.tick(HEADER_WAIT)
    await codex.sink.refuse(REFUSED)
    assert events(codex.text)[-1]["response"]["id"] is None


async def test_a_usage_limit_after_the_headers_gets_an_ordinary_code(codex: Stream):
    await codex.tick(HEADER_WAIT)
    await codex.sink.refuse(Answer(429, USAGE_LIMIT, None, "Spent.", extra={"resets_at": 5}))
    assert events(codex.text)[-1]["response"]["error"]["code"] == "account_limited"


async def test_an_error_event_becomes_response_failed_for_the_codex_client_which_knows_no_other_end(codex: Stream):
    await codex.sink.deliver([CREATED])
    await codex.sink.deliver([DELTA, ERROR])
    assert codex.types == ["response.created", "response.output_text.delta", "response.failed"]
    failed = events(codex.text)[-1]["response"]
    assert (failed["id"], failed["error"]) == ("resp_1", {"code": "server_error", "message": "Broken."})
    assert codex.server.complete


async def test_an_error_event_stays_one_on_v1(v1: Stream):
    await v1.sink.deliver([CREATED, ERROR])
    assert v1.types == ["response.created", "error"]
    assert v1.server.complete


async def test_on_v1_no_event_of_the_codex_backend_is_sent(v1: Stream):
    await v1.sink.deliver([LIMITS, METADATA, CREATED])
    await v1.sink.deliver([LIMITS])
    await v1.sink.deliver([LIMITS, COMPLETED])
    assert v1.types == ["response.metadata", "response.created", "response.completed"]
    assert len(v1.server.pieces) == 2


# Silence


async def test_after_header_wait_the_headers_and_a_keepalive_go_out(codex: Stream):
    assert await codex.tick(0) <= INTERVAL, "the stream may begin at any time"
    assert await codex.tick(HEADER_WAIT - 1) == pytest.approx(1)
    assert codex.server.sent == []
    await codex.tick(HEADER_WAIT)
    assert codex.server.status == 200
    assert codex.text == KEEPALIVE_EVENT


async def test_metadata_held_for_the_headers_is_not_lost_when_silence_ends_the_wait(codex: Stream):
    await codex.sink.deliver([LIMITS, METADATA])
    await codex.tick(HEADER_WAIT)
    assert codex.server.headers["x-codex-primary-used-percent"] == "42"
    await codex.sink.deliver([CREATED])
    assert codex.types == ["codex.rate_limits", "response.metadata", "keepalive", "response.created"]


async def test_on_v1_metadata_held_for_the_headers_stays_unsent_when_it_is_the_codex_backends(v1: Stream):
    await v1.sink.deliver([LIMITS])
    await v1.tick(HEADER_WAIT)
    assert v1.text == KEEPALIVE_COMMENT


async def test_a_silence_in_the_stream_is_broken_by_an_event_for_codex_and_by_a_comment_on_v1(
    codex: Stream, v1: Stream
):
    for stream in (codex, v1):
        await stream.sink.deliver([CREATED])
        await stream.silence(INTERVAL - 1)
        assert len(stream.server.pieces) == 1
        await stream.silence(INTERVAL)
    assert codex.server.pieces[1] == KEEPALIVE_EVENT
    assert v1.server.pieces[1] == KEEPALIVE_COMMENT


async def test_a_keepalive_that_is_being_sent_is_finished_before_the_next_event(codex: Stream):
    await codex.sink.deliver([CREATED])
    codex.server.fill()
    await codex.silence(INTERVAL)
    delivering = asyncio.ensure_future(codex.sink.deliver([DELTA]))
    await asyncio.sleep(0)
    assert codex.types[-1] == "keepalive"
    codex.server.free.set()
    await delivering
    assert codex.types == ["response.created", "keepalive", "response.output_text.delta"]


async def test_headers_that_are_being_sent_for_a_silence_are_sent_once(codex: Stream):
    codex.server.fill()
    await codex.tick(HEADER_WAIT)
    delivering = asyncio.ensure_future(codex.sink.deliver([CREATED]))
    await asyncio.sleep(0)
    codex.server.free.set()
    await delivering
    assert [message["type"] for message in codex.server.sent] == ["http.response.start", *["http.response.body"] * 2]


async def test_no_keepalive_while_the_client_has_not_taken_the_last_event(codex: Stream):
    await codex.sink.deliver([CREATED])
    codex.server.fill()
    delivering = asyncio.ensure_future(codex.sink.deliver([DELTA]))
    await asyncio.sleep(0)
    await codex.silence(2 * INTERVAL)
    assert codex.types == ["response.created", "response.output_text.delta"]
    codex.server.free.set()
    await delivering


async def test_no_keepalive_follows_the_terminal_event(codex: Stream):
    await codex.sink.deliver([CREATED])
    await codex.sink.end_silence()
    await codex.sink.deliver([COMPLETED])
    await codex.silence(10 * INTERVAL)
    assert codex.types[-1] == "response.completed"


async def test_a_refusal_waits_for_a_keepalive_that_is_being_sent(codex: Stream):
    codex.server.fill()
    await codex.tick(HEADER_WAIT)
    refusing = asyncio.ensure_future(codex.sink.refuse(REFUSED))
    await asyncio.sleep(0)
    codex.server.free.set()
    await refusing
    assert codex.types == ["keepalive", "response.failed"]
    assert codex.server.complete


async def test_a_client_that_takes_nothing_is_noticed_by_the_tick(codex: Stream):
    codex.server.fill()
    codex.server.size = 100
    delivering = asyncio.ensure_future(codex.sink.deliver([CREATED]))
    await asyncio.sleep(0)
    await codex.silence(1)
    with pytest.raises(ClientLost):
        await codex.silence(2 + STALL)
    delivering.cancel()
