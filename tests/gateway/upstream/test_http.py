"""One response over HTTP, on real sockets and from scripted answers."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.diagnostics import Trace
from gateway.errors import ConnectFailed, Overloaded, UpstreamEnded, UpstreamLost, UpstreamRefused
from gateway.protocol.events import Event, Kind
from gateway.simulator import Simulator
from gateway.upstream import http
from gateway.upstream.exchange import Target
from gateway.upstream.headers import for_http
from gateway.upstream.http import HttpExchange, HttpTransport
from tests.gateway.upstream.peers import Answering, Mute, tcp

PAYLOAD = b'{"model":"gpt-5.5","stream":true,"store":false,"input":"hi"}'
COMPLETED = b'data: {"type":"response.completed","response":{"id":"resp_1"}}\n\n'
DELTA = b'data: {"type":"response.output_text.delta","delta":"a"}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
async def transport() -> AsyncIterator[HttpTransport]:
    made = HttpTransport(Tunables(terminal_drain_timeout=0.05, close_timeout=0.2), Clock())
    yield made
    await made.close()


def target_at(base_url: str, *headers: tuple[str, str]) -> Target:
    sent = for_http(headers, {"authorization": "Bearer sk-ada"}, None)
    return Target(1, base_url, sent, Trace("turn", "replica", "ada", 1, Clock()))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def whole(exchange: HttpExchange) -> list[Event]:
    """Everything up to the terminal event."""
    events: list[Event] = []
    while not events or events[-1].kind is not Kind.TERMINAL:
        events += await exchange.receive()
    return events


async def carry(exchange: HttpExchange) -> None:
    await exchange.send(PAYLOAD)
    await whole(exchange)


async def test_a_response_arrives_as_the_events_it_was_sent_as(transport: HttpTransport):
    async with Simulator(keep_bodies=True) as upstream:
        exchange = transport.exchange(target_at(upstream.url))
        await exchange.send(PAYLOAD)
        assert "x-codex-primary-used-percent" in exchange.headers()
        events = await whole(exchange)
        await exchange.close(clean=True)
        (seen,) = upstream.observed.requests
    assert (events[0].kind, events[-1].kind) == (Kind.CREATED, Kind.TERMINAL)
    assert seen.raw == PAYLOAD
    assert seen.headers["accept-encoding"] == "identity"


async def test_a_connection_is_used_again_after_a_clean_end(transport: HttpTransport):
    async with Simulator() as upstream:
        for _ in range(2):
            exchange = transport.exchange(target_at(upstream.url))
            await exchange.send(PAYLOAD)
            await whole(exchange)
            await exchange.close(clean=True)
        assert len({seen.connection for seen in upstream.observed.requests}) == 1


async def test_a_response_that_is_given_up_ends_the_upstreams_work(transport: HttpTransport):
    async with Simulator(faults=("silent_after_created",)) as upstream:
        exchange = transport.exchange(target_at(upstream.url))
        await exchange.send(PAYLOAD)
        await exchange.receive()
        await exchange.close(clean=False)
        await upstream.until(lambda seen: not seen.running)


async def test_a_request_that_is_cancelled_ends_the_upstreams_work(transport: HttpTransport):
    async with Simulator(faults=("silent",)) as upstream:
        exchange = transport.exchange(target_at(upstream.url))
        sending = asyncio.ensure_future(exchange.send(PAYLOAD))
        await upstream.until(lambda seen: seen.running == 1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await exchange.close(clean=False)
        await upstream.until(lambda seen: not seen.running)


async def test_nothing_has_been_sent_before_send(transport: HttpTransport):
    async with Simulator() as upstream:
        exchange = transport.exchange(target_at(upstream.url))
        assert exchange.headers() == {}
        await exchange.close(clean=False)
        assert not upstream.observed.requests


async def test_events_that_came_together_are_received_together(transport: HttpTransport):
    async with tcp(lambda: Answering(HEAD + chunk(DELTA) * 50 + b"0\r\n\r\n")) as base_url:
        exchange = transport.exchange(target_at(base_url))
        await exchange.send(PAYLOAD)
        assert len(await exchange.receive()) == 50
        with pytest.raises(UpstreamLost, match="ended its stream"):
            await exchange.receive()
        await exchange.close(clean=False)


async def test_an_event_cut_into_single_bytes_is_one_event(transport: HttpTransport):
    async with Simulator(faults=("split_chunks:1",)) as upstream:
        exchange = transport.exchange(target_at(upstream.url))
        await exchange.send(PAYLOAD)
        events = await whole(exchange)
        await exchange.close(clean=True)
    assert [event.type for event in events][:2] == ["response.created", "response.in_progress"]


@pytest.mark.parametrize("fault", ["no_terminal", "eof", "reset", "reset_before_created"])
async def test_a_stream_that_ends_early_is_lost(transport: HttpTransport, fault: str):
    async with Simulator(faults=(fault,)) as upstream:
        exchange = transport.exchange(target_at(upstream.url))
        with pytest.raises(UpstreamLost):
            await carry(exchange)
        await exchange.close(clean=False)


async def test_an_empty_answer_is_a_lost_response(transport: HttpTransport):
    async with tcp(lambda: Answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")) as base_url:
        exchange = transport.exchange(target_at(base_url))
        await exchange.send(PAYLOAD)
        with pytest.raises(UpstreamLost, match="ended its stream"):
            await exchange.receive()
        await exchange.close(clean=False)


@pytest.mark.parametrize("status", [201, 204, 302, 400, 401, 429, 500, 503])
async def test_any_status_but_200_is_a_refusal_and_a_redirect_is_not_followed(transport: HttpTransport, status: int):
    answer = f"HTTP/1.1 {status} No\r\nLocation: /elsewhere\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n"
    async with tcp(lambda: Answering(answer.encode())) as base_url:
        exchange = transport.exchange(target_at(base_url))
        with pytest.raises(UpstreamRefused) as refused:
            await exchange.send(PAYLOAD)
        await exchange.close(clean=False)
    assert (refused.value.refusal.status, refused.value.refusal.headers["retry-after"]) == (status, "3")


async def test_a_refusal_says_what_the_upstream_said(transport: HttpTransport):
    async with Simulator(faults=("usage_limit:60",)) as upstream:
        exchange = transport.exchange(target_at(upstream.url))
        with pytest.raises(UpstreamRefused) as refused:
            await exchange.send(PAYLOAD)
        await exchange.close(clean=False)
    told = refused.value.refusal
    assert (told.status, told.type, told.plan_type) == (429, "usage_limit_reached", "plus")
    assert told.resets_at is not None


async def test_a_refusal_whose_body_breaks_off_is_still_a_refusal(transport: HttpTransport):
    answer = b"HTTP/1.1 429 No\r\nContent-Length: 100\r\n\r\n{"
    async with tcp(lambda: Answering(answer)) as base_url:
        exchange = transport.exchange(target_at(base_url))
        with pytest.raises(UpstreamRefused) as refused:
            await exchange.send(PAYLOAD)
        await exchange.close(clean=False)
    assert refused.value.refusal.status == 429


async def test_a_refusal_is_read_to_a_limit():
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"x" * 100_000

    transport = HttpTransport(
        Tunables(), Clock(), httpx.MockTransport(lambda _: httpx.Response(500, content=endless()))
    )
    exchange = transport.exchange(target_at("http://upstream/v1"))
    with pytest.raises(UpstreamRefused):
        await exchange.send(PAYLOAD)
    await exchange.close(clean=False)
    await transport.close()
    assert taken * 100_000 < 2 * http.REFUSAL_LIMIT


async def test_a_refused_connection_has_sent_nothing(transport: HttpTransport):
    async with tcp(Mute) as base_url:
        pass
    exchange = transport.exchange(target_at(base_url))
    with pytest.raises(ConnectFailed):
        await exchange.send(PAYLOAD)
    await exchange.close(clean=False)


async def test_when_all_connections_are_in_use_nothing_was_sent():
    transport = HttpTransport(Tunables(http_max_connections=1, pool_timeout=0.05, close_timeout=0.2), Clock())
    async with Simulator(faults=("silent_after_created",)) as upstream:
        first, second = (transport.exchange(target_at(upstream.url)) for _ in range(2))
        await first.send(PAYLOAD)
        with pytest.raises(Overloaded) as refused:
            await second.send(PAYLOAD)
        await second.close(clean=False)
        await first.close(clean=False)
        assert len(upstream.observed.requests) == 1
    await transport.close()
    assert refused.value.code == "http_pool_busy"


async def test_silence_of_the_connection_has_its_limit():
    transport = HttpTransport(Tunables(read_timeout=0.05), Clock())
    async with Simulator(faults=("silent_after_created",)) as upstream:
        exchange = transport.exchange(target_at(upstream.url))
        await exchange.send(PAYLOAD)
        await exchange.receive()
        with pytest.raises(UpstreamLost) as lost:
            await exchange.receive()
        await exchange.close(clean=False)
    await transport.close()
    assert isinstance(lost.value.__cause__, httpx.ReadTimeout)


async def test_framing_that_never_ends_after_the_terminal_event_costs_no_more_than_its_time(transport: HttpTransport):
    class Lingering(Mute):
        def data_received(self, data: bytes) -> None:
            self.transport.write(HEAD + chunk(COMPLETED))

    async with tcp(Lingering) as base_url:
        exchange = transport.exchange(target_at(base_url))
        await exchange.send(PAYLOAD)
        assert [event.kind for event in await exchange.receive()] == [Kind.TERMINAL]
        async with asyncio.timeout(1):
            await exchange.close(clean=True)


async def test_a_break_after_the_terminal_event_is_no_second_error(transport: HttpTransport):
    async with tcp(lambda: Answering(HEAD + chunk(COMPLETED) + b"not a chunk")) as base_url:
        exchange = transport.exchange(target_at(base_url))
        await exchange.send(PAYLOAD)
        await exchange.receive()
        await exchange.close(clean=True)


async def test_an_event_beyond_the_limit_is_given_up(transport: HttpTransport):
    class Endless(Mute):
        def data_received(self, data: bytes) -> None:
            self.transport.write(HEAD)
            for _ in range(17):
                self.transport.write(chunk(b"x" * 1024 * 1024))

    async with tcp(Endless) as base_url:
        exchange = transport.exchange(target_at(base_url))
        with pytest.raises(UpstreamLost, match="event of more than"):
            await carry(exchange)
        await exchange.close(clean=False)


async def test_proxies_of_the_environment_are_not_used(transport: HttpTransport, monkeypatch: pytest.MonkeyPatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with Simulator() as upstream:
        response = await transport.fetch(target_at(upstream.url), "/models")
    assert response.status_code == 200


@pytest.mark.parametrize("value", ["caf\xe9", "\xc3\xa9", "plain"])
async def test_a_header_value_beyond_ascii_passes_byte_by_byte(transport: HttpTransport, value: str):
    """The client's bytes were read as Latin-1, the way HTTP defines them."""
    got: list[bytes] = []

    class Listening(Mute):
        def data_received(self, data: bytes) -> None:
            got.append(data)
            self.transport.write(HEAD + chunk(COMPLETED) + b"0\r\n\r\n")

    async with tcp(Listening) as base_url:
        exchange = transport.exchange(target_at(base_url, ("x-title", value)))
        await exchange.send(PAYLOAD)
        await exchange.receive()
        await exchange.close(clean=True)
    assert b"\r\nx-title: " + value.encode("latin-1") + b"\r\n" in b"".join(got)


@pytest.mark.parametrize(
    "call", [lambda e: e.publish("resp_1"), lambda e: e.remember(None), lambda e: e.watch_backlog(print)]
)
def test_an_http_connection_owns_and_holds_nothing(call: Callable[[HttpExchange], None]):
    exchange = HttpTransport(Tunables(), Clock()).exchange(target_at("http://upstream/v1"))
    call(exchange)
    assert exchange.backlog() == 0


async def test_a_small_document_is_fetched_whatever_its_status(transport: HttpTransport):
    async with Simulator() as upstream:
        known = await transport.fetch(target_at(upstream.url), "/models?client_version=1")
        unknown = await transport.fetch(target_at(upstream.url), "/elsewhere")
    assert (known.status_code, unknown.status_code) == (200, 404)
    with pytest.raises(ConnectFailed):
        await transport.fetch(target_at(upstream_gone(known)), "/models")


async def test_a_call_is_answered_whole_whatever_its_status(transport: HttpTransport):
    async with Simulator() as upstream:
        known = await transport.call(target_at(upstream.url), "GET", "/models")
        unknown = await transport.call(target_at(upstream.url), "DELETE", "/responses/resp_1")
        gone = upstream.url
    assert (known.status, unknown.status) == (200, 404)
    assert known.headers["content-type"] == "application/json"
    assert b"gpt-5.5" in known.body
    with pytest.raises(ConnectFailed):
        await transport.call(target_at(gone), "GET", "/models")


async def test_an_answer_without_end_is_given_up(transport: HttpTransport):
    class Endless(Mute):
        def data_received(self, data: bytes) -> None:
            self.transport.write(HEAD)
            self.write()

        def write(self) -> None:
            if not self.transport.is_closing():
                self.transport.write(chunk(b"x" * 1024 * 1024))
                asyncio.get_running_loop().call_later(0.001, self.write)

    async with tcp(Endless) as base_url:
        with pytest.raises(UpstreamLost):
            await transport.call(target_at(base_url), "GET", "/models")


def upstream_gone(response: httpx.Response) -> str:
    return f"http://127.0.0.1:{response.url.port}/v1"


async def test_what_is_left_of_one_answer_is_not_the_answer_to_the_next_request(transport: HttpTransport):
    end = b"0\r\n\r\n"

    class Chatty(Mute):
        """Sends a second answer behind the first, in one piece with it, and closes nothing."""

        def data_received(self, data: bytes) -> None:
            if data.endswith(PAYLOAD):
                self.transport.write((HEAD + chunk(COMPLETED) + end) * 2)

    async with tcp(Chatty) as base_url:
        first, second, third = (transport.exchange(target_at(base_url)) for _ in range(3))
        await carry(first)
        await first.close(clean=True)
        with pytest.raises(UpstreamLost, match="nobody had asked for"):
            await second.send(PAYLOAD)
        await second.close(clean=False)
        await carry(third)
        await third.close(clean=False)


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"content-type": "text/html"}, "The upstream sent text/html in place of a stream of events"),
        ({"content-type": "text/event-stream", "content-encoding": "br"}, "The upstream sent its stream as br"),
        ({"content-type": "text/event-stream; charset=utf-8"}, "The upstream ended its stream before"),
        ({}, "The upstream ended its stream before"),
    ],
)
async def test_an_answer_that_is_no_stream_of_events_is_named(headers: dict[str, str], said: str):
    answer = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, stream=httpx.ByteStream(b"hello")))
    exchange = HttpTransport(Tunables(), Clock(), answer).exchange(target_at("http://upstream/v1"))
    await exchange.send(PAYLOAD)
    with pytest.raises(UpstreamEnded, match=said):
        await exchange.receive()


async def test_a_refusal_is_read_in_whatever_encoding_it_comes():
    body = gzip.compress(b'{"error":{"message":"no such model","code":"model_not_found"}}')
    answer = httpx.MockTransport(lambda _: httpx.Response(400, headers={"content-encoding": "gzip"}, content=body))
    exchange = HttpTransport(Tunables(), Clock(), answer).exchange(target_at("http://upstream/v1"))
    with pytest.raises(UpstreamRefused) as refused:
        await exchange.send(PAYLOAD)
    assert (refused.value.refusal.message, refused.value.refusal.code) == ("no such model", "model_not_found")
