"""The way to one client: whether it still takes anything, and keepalives that disturb nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gateway.conf import Tunables
from gateway.consumers.wire import ClientWire, Keepalive, send_document, shown
from gateway.errors import ClientLost
from tests.gateway.consumers.asgi import Server

STALL = 60.0
INTERVAL = 15.0
TUNABLES = Tunables(client_stall_timeout=STALL, keepalive_interval=INTERVAL)


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def wire(server: Server) -> ClientWire:
    return ClientWire(server.send, TUNABLES, server.buffered, server.write)


async def blocked(wire: ClientWire, server: Server, size: int = 1000) -> asyncio.Task[None]:
    """A send that waits for the client."""
    server.fill()
    server.size = size
    sending = asyncio.ensure_future(wire.send({"type": "piece"}))
    await asyncio.sleep(0)
    return sending


def lost_after(wire: ClientWire, meanwhile: Callable[[], None] = lambda: None) -> tuple[float, ClientLost]:
    """After how many seconds of waiting the client is given up, and how; it is checked whenever that is due."""
    waited = 0.0
    while waited < 10 * STALL:
        try:
            waited += wire.check(wire.sent_at + waited)
        except ClientLost as lost:
            return waited, lost
        meanwhile()
    raise AssertionError("the client was never given up")


async def test_a_send_is_handed_on_and_noted(wire: ClientWire, server: Server):
    wire.sent_at = 0.0
    await wire.send({"type": "piece"})
    assert server.sent == [{"type": "piece"}]
    assert wire.sent_at > 0
    assert not wire.sending


async def test_a_write_goes_around_the_send_and_breaks_the_silence(wire: ClientWire, server: Server):
    await wire.send({"type": "http.response.start"})
    wire.sent_at = 0.0
    assert wire.write([b"a", b"b"])
    assert server.pieces == [b"ab"]
    assert wire.sent_at > 0


async def test_nothing_is_written_while_a_send_waits_or_the_server_cannot(wire: ClientWire, server: Server):
    await wire.send({"type": "http.response.start"})
    sending = await blocked(wire, server)
    server.free.set()
    assert not wire.write([b"before its turn"])
    await sending
    server.left = True
    assert not wire.write([b"too late"])
    assert not ClientWire(server.send, TUNABLES).write([b"no such way"])
    assert server.pieces == []


async def test_a_client_that_left_is_known_by_the_next_send(wire: ClientWire, server: Server):
    server.left = True
    with pytest.raises(ClientLost) as lost:
        await wire.send({"type": "piece"})
    assert lost.value.code == "client_gone"
    assert not wire.sending


async def test_a_client_that_nothing_is_sent_to_is_never_stalled(wire: ClientWire):
    assert wire.check(wire.sent_at + 100 * STALL) <= STALL


async def test_a_client_that_takes_nothing_is_lost_after_its_time(wire: ClientWire, server: Server):
    sending = await blocked(wire, server)
    after, lost = lost_after(wire)
    assert lost.code == "client_stalled"
    assert "GATEWAY_CLIENT_STALL_TIMEOUT" in lost.message
    assert STALL <= after <= 1.5 * STALL
    sending.cancel()


async def test_any_byte_that_is_taken_is_progress(wire: ClientWire, server: Server):
    sending = await blocked(wire, server)
    now = wire.sent_at
    for _ in range(100):
        now += wire.check(now)
        server.size -= 1
    server.free.set()
    await sending


async def test_the_servers_own_pings_are_no_progress_of_the_client(wire: ClientWire, server: Server):
    sending = await blocked(wire, server)

    def ping() -> None:
        server.size += 6

    after, _ = lost_after(wire, meanwhile=ping)
    assert after <= 1.5 * STALL
    sending.cancel()


async def test_a_send_that_begins_after_a_stall_starts_its_own_time(wire: ClientWire, server: Server):
    sending = await blocked(wire, server)
    wire.check(wire.sent_at)
    wire.check(wire.sent_at + STALL - 1)
    server.free.set()
    await sending
    again = await blocked(wire, server)
    wire.check(wire.sent_at)
    wire.check(wire.sent_at + STALL - 1)
    again.cancel()


async def test_on_a_server_that_tells_no_sizes_a_send_that_does_not_return_is_no_progress(server: Server):
    wire = ClientWire(server.send, TUNABLES, None)
    sending = await blocked(wire, server)
    wire.check(wire.sent_at + STALL - 1)
    with pytest.raises(ClientLost):
        wire.check(wire.sent_at + STALL + 0.01)
    sending.cancel()


# Keepalives


class Kept:
    """A keepalive on a wire, and how it is sent there."""

    def __init__(self, wire: ClientWire) -> None:
        self.wire = wire
        self.keepalive = Keepalive(wire, INTERVAL)

    def check(self, silence: float) -> float:
        return self.keepalive.check(self.wire.sent_at + silence, lambda: self.wire.send({"type": "keepalive"}))


@pytest.fixture
async def kept(wire: ClientWire) -> Kept:
    return Kept(wire)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_keepalive_is_sent_after_the_interval_and_not_before(kept: Kept, server: Server):
    assert kept.check(INTERVAL - 1) == pytest.approx(1)
    assert not kept.keepalive.sending
    assert kept.check(INTERVAL) == INTERVAL
    await settle()
    assert server.sent == [{"type": "keepalive"}]


async def test_a_send_starts_the_interval_anew(kept: Kept, wire: ClientWire):
    began = wire.sent_at = wire.sent_at - 10
    await wire.send({"type": "piece"})
    left = kept.keepalive.check(began + INTERVAL, lambda: wire.send({}))
    assert left == pytest.approx(10, abs=1)


async def test_no_keepalive_is_sent_while_the_client_has_not_taken_the_last_piece(
    kept: Kept, wire: ClientWire, server: Server
):
    sending = await blocked(wire, server)
    assert kept.check(2 * INTERVAL) == INTERVAL
    await settle()
    assert server.sent == [{"type": "piece"}]
    sending.cancel()


async def test_one_keepalive_at_a_time_and_the_next_send_can_wait_for_it(kept: Kept, server: Server):
    server.fill()
    kept.check(INTERVAL)
    await settle()
    assert kept.keepalive.sending
    kept.check(2 * INTERVAL)
    waiting = asyncio.ensure_future(kept.keepalive.wait())
    await settle()
    assert not waiting.done()
    server.free.set()
    await waiting
    assert server.sent == [{"type": "keepalive"}]


async def test_after_the_end_none_is_sent_and_one_on_its_way_has_gone_out(kept: Kept, server: Server):
    server.fill()
    kept.check(INTERVAL)
    ending = asyncio.ensure_future(kept.keepalive.end())
    await settle()
    assert not ending.done()
    server.free.set()
    await ending
    assert kept.check(10 * INTERVAL) == INTERVAL
    await settle()
    assert len(server.sent) == 1


async def test_a_client_that_left_is_not_the_keepalives_business(kept: Kept, server: Server):
    server.left = True
    kept.check(INTERVAL)
    await kept.keepalive.wait()
    assert not kept.keepalive.sending


# Documents and headers


def test_the_upstreams_headers_that_clients_read_are_shown_and_no_others():
    told = {
        "x-codex-primary-used-percent": "1",
        "x-codex-turn-state": "s",
        "openai-model": "m",
        "x-models-etag": "e",
        "x-request-id": "r",
        "set-cookie": "secret",
        "content-length": "3",
        "server": "nginx",
        "transfer-encoding": "chunked",
    }
    assert shown(told).keys() == {
        "x-codex-primary-used-percent",
        "x-codex-turn-state",
        "openai-model",
        "x-models-etag",
        "x-request-id",
    }


async def test_a_document_says_what_it_is_and_how_long(wire: ClientWire, server: Server):
    await send_document(wire, 400, b'{"a":1}', {"retry-after": "1", "x-odd": "\u20ac"})
    start, rest = server.sent
    assert start["status"] == 400
    assert dict(start["headers"]) == {
        b"retry-after": b"1",
        b"x-odd": b"?",
        b"content-type": b"application/json",
        b"content-length": b"7",
    }
    assert rest == {"type": "http.response.body", "body": b'{"a":1}', "more_body": False}
