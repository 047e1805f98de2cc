"""Lanes on real sockets, by the installed library: what waits is counted, and every end has its meaning."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.diagnostics import Trace
from gateway.errors import ConnectFailed, LivenessExpired, UpstreamLost, UpstreamRefused
from gateway.simulator import Simulator
from gateway.upstream.connection import MAX_FRAME, READ_BATCH, LaneConnection, WebSocketDialer, websocket_url
from gateway.upstream.exchange import Target
from tests.gateway.upstream.peers import (
    Answering,
    DeadPeer,
    Handler,
    LeavingPeer,
    Mute,
    TalkativePeer,
    speaking,
    tcp,
    until_closed,
)

BRISK = Tunables(websocket_idle_timeout=0.3, close_timeout=0.1)


class Listener:
    """Notes what a connection tells."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.lost = asyncio.Event()

    def backlog_grew(self, size: int) -> None:
        self.sizes.append(size)

    def connection_lost(self) -> None:
        self.lost.set()


def target_at(base_url: str, *headers: tuple[str, str]) -> Target:
    return Target(1, base_url, headers, Trace("turn", "replica", "ada", 1, Clock()))


async def dial(base_url: str, tunables: Tunables = BRISK, *headers: tuple[str, str]) -> LaneConnection:
    return await WebSocketDialer(tunables, Clock())(target_at(base_url, *headers))


@asynccontextmanager
async def lane_to(handler: Handler, tunables: Tunables = Tunables()) -> AsyncIterator[LaneConnection]:  # noqa: B008
    """A lane to a server that runs `handler`; a frozen default is shared safely."""
    async with speaking(handler) as base_url:
        connection = await dial(base_url, tunables)
        try:
            yield connection
        finally:
            await connection.close()


async def waits_for(connection: LaneConnection, messages: int) -> None:
    async with asyncio.timeout(5):
        while connection.waiting_messages < messages:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("https://chatgpt.com/backend-api/codex", "wss://chatgpt.com/backend-api/codex/responses"),
        ("http://127.0.0.1:8000/v1", "ws://127.0.0.1:8000/v1/responses"),
    ],
)
def test_a_lane_goes_where_the_accounts_responses_are(base_url: str, url: str):
    assert websocket_url(base_url) == url


# Reading and writing


async def test_frames_pass_both_ways_byte_by_byte():
    async def echo(peer: ServerConnection) -> None:
        async for message in peer:
            await peer.send(message)

    async with lane_to(echo) as lane:
        text = '{"delta": "é€\U0001f600\\u2028"}'.encode()
        await lane.write(text)
        assert await lane.read() == [text]


async def test_what_waits_is_counted_and_read_at_once():
    async def talk(peer: ServerConnection) -> None:
        await peer.send(["12", "345", ""])
        for _ in range(3):
            await peer.send("x" * 10)
        await peer.wait_closed()

    async with lane_to(talk) as lane:
        listener = lane.listener = Listener()
        await waits_for(lane, 4)
        assert (lane.waiting_messages, lane.waiting_bytes) == (4, 35)
        assert listener.sizes[-1:] in ([], [35])
        assert await lane.read() == [b"12345", *[b"x" * 10] * 3]
        assert (lane.waiting_messages, lane.waiting_bytes) == (0, 0)


async def test_a_flood_is_read_in_batches():
    message = "x" * (READ_BATCH // 4)

    async def flood(peer: ServerConnection) -> None:
        for _ in range(10):
            await peer.send(message)
        await peer.wait_closed()

    async with lane_to(flood) as lane:
        await waits_for(lane, 10)
        assert [len(await lane.read()) for _ in range(3)] == [4, 4, 2]


async def test_reading_is_never_paused_so_an_unread_lane_hears_its_pongs():
    async def flood(peer: ServerConnection) -> None:
        for _ in range(2000):
            await peer.send("x" * 100)
        await peer.wait_closed()

    async with lane_to(flood, BRISK) as lane:
        listener = lane.listener = Listener()
        await waits_for(lane, 2000)
        await asyncio.sleep(2 * (BRISK.ping_interval + BRISK.websocket_idle_timeout))
        assert not listener.lost.is_set()
        assert listener.sizes == sorted(listener.sizes)
        assert lane.waiting_bytes == 200_000


async def test_a_reader_may_take_messages_the_moment_they_arrive_and_is_not_woken_for_them():
    async def talk(peer: ServerConnection) -> None:
        for text in ("1", "2", "stop", "3"):
            await peer.recv()
            await peer.send(text)
        await peer.wait_closed()

    taken: list[bytes] = []
    answers: list[asyncio.Task[None]] = []

    async with lane_to(talk) as lane:
        listener = lane.listener = Listener()

        def take(messages: list[bytes]) -> bool:
            if messages == [b"stop"]:
                return False
            taken.extend(messages)
            answers.append(asyncio.ensure_future(lane.write(b"next")))
            return True

        reading = asyncio.ensure_future(lane.read(take))
        await lane.write(b"go")
        assert await reading == [b"stop"]
        assert taken == [b"1", b"2"]
        await lane.write(b"next")
        await waits_for(lane, 1)
        assert await lane.read(take) == [b"3"], "what came while nobody read is not offered"
        assert (lane.waiting_bytes, listener.sizes) == (0, [])


async def test_nothing_is_taken_behind_the_back_of_a_message_that_waits():
    async def talk(peer: ServerConnection) -> None:
        await peer.recv()
        await peer.send("refused")
        await peer.send("y" * 70_000)
        await peer.send("z")
        await peer.wait_closed()

    offered: list[bytes] = []

    def take(messages: list[bytes]) -> bool:
        offered.extend(messages)
        return messages[0] != b"refused"

    async with lane_to(talk) as lane:
        reading = asyncio.ensure_future(lane.read(take))
        await lane.write(b"go")
        read = await reading
        while len(read) < 3:
            read += await lane.read()
    assert read == [b"refused", b"y" * 70_000, b"z"]
    assert offered[0] == b"refused"


async def test_a_reader_that_was_cancelled_takes_nothing_any_more():
    async def talk(peer: ServerConnection) -> None:
        await peer.recv()
        await peer.send("late")
        await peer.wait_closed()

    taken: list[bytes] = []
    async with lane_to(talk) as lane:
        reading = asyncio.ensure_future(lane.read(lambda messages: bool(taken.extend(messages)) or True))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait({reading})
        await lane.write(b"go")
        assert await lane.read() == [b"late"]
    assert taken == []


async def test_frames_that_come_with_the_handshake_are_read():
    async with tcp(TalkativePeer) as base_url:
        lane = await dial(base_url)
        read = await lane.read()
        while len(read) < 3:
            read += await lane.read()
        assert read == list(TalkativePeer.TEXTS)


async def test_a_fragmented_message_is_one_message_and_counted_as_it_comes():
    async def talk(peer: ServerConnection) -> None:
        await peer.send(["12", "345"])
        await peer.send("6")
        await peer.recv()
        peer.protocol.send_text(b"78", fin=False)
        peer.transport.write(b"".join(peer.protocol.data_to_send()))
        await peer.wait_closed()

    async with lane_to(talk) as lane:
        await waits_for(lane, 2)
        assert await lane.read() == [b"12345", b"6"]
        await lane.write(b"go")
        async with asyncio.timeout(5):
            while not lane.waiting_bytes:
                await asyncio.sleep(0.001)
        assert (lane.waiting_messages, lane.waiting_bytes) == (0, 2)


async def test_every_frame_is_a_sign_of_life():
    async with lane_to(until_closed, BRISK) as lane:
        before = lane.last_heard
        await (await lane.ping())
        assert lane.last_heard > before
        assert lane.waiting_messages == 0


async def test_a_binary_frame_is_noticed():
    async def talk(peer: ServerConnection) -> None:
        await peer.send("text")
        await peer.send(b"bytes")
        await peer.wait_closed()

    async with lane_to(talk) as lane:
        await waits_for(lane, 2)
        assert lane.got_binary


async def test_messages_that_came_before_a_close_are_read_before_it_is_met():
    async def talk(peer: ServerConnection) -> None:
        await peer.send("last words")
        await peer.close(1000)

    async with lane_to(talk) as lane:
        listener = lane.listener = Listener()
        await lane.wait_closed()
        assert listener.lost.is_set()
        assert await lane.read() == [b"last words"]
        with pytest.raises(UpstreamLost, match="1000"):
            await lane.read()


@pytest.mark.parametrize("code", [1000, 1001, 1008, 1011, 1012, 4000])
async def test_a_close_of_the_peer_is_a_loss_that_names_its_code(code: int):
    async def leave(peer: ServerConnection) -> None:
        await peer.close(code)

    async with lane_to(leave) as lane:
        with pytest.raises(UpstreamLost, match=str(code)):
            await lane.read()


async def test_an_upstream_that_closes_but_keeps_tcp_open_is_left_after_the_close_timeout():
    async with tcp(LeavingPeer) as base_url:
        lane = await dial(base_url, Tunables(close_timeout=0.1))
        async with asyncio.timeout(2):
            with pytest.raises(UpstreamLost):
                await lane.read()


async def test_an_end_without_a_close_frame_is_a_loss():
    async def break_off(peer: ServerConnection) -> None:
        peer.transport.abort()

    async with lane_to(break_off) as lane:
        with pytest.raises(UpstreamLost, match="was lost"):
            await lane.read()
        with pytest.raises(ConnectFailed):
            await lane.write(b"{}")


async def test_a_message_of_more_than_16_mib_ends_the_lane():
    async def talk(peer: ServerConnection) -> None:
        await peer.send("x" * (MAX_FRAME + 1))
        await peer.wait_closed()

    async with lane_to(talk) as lane:
        with pytest.raises(UpstreamLost):
            await lane.read()
        assert lane.protocol.close_sent is not None
        assert lane.protocol.close_sent.code == 1009


async def test_nothing_is_written_on_a_lane_whose_peer_has_said_goodbye():
    """The closing handshake takes a moment; a request that comes meanwhile provably was not sent."""
    async with tcp(LeavingPeer) as base_url:
        lane = await dial(base_url)
        async with asyncio.timeout(5):
            while lane.protocol.close_rcvd is None:
                await asyncio.sleep(0.001)
        with pytest.raises(ConnectFailed) as failed:
            await lane.write(b"{}")
        await lane.close()
    assert failed.value.code == "lane_closed"


async def test_a_break_in_the_middle_of_a_write_is_a_loss():
    async def break_off(peer: ServerConnection) -> None:
        peer.transport.pause_reading()
        await asyncio.sleep(0.05)
        peer.transport.abort()

    async with lane_to(break_off) as lane:
        with pytest.raises(UpstreamLost):
            await lane.write(b"x" * 16_000_000)


async def test_what_an_upstream_sends_while_its_lane_closes_is_not_kept():
    async def talk_on(peer: ServerConnection) -> None:
        while True:
            await peer.send("x" * 1000)
            await asyncio.sleep(0)

    async with speaking(talk_on, close_timeout=0.1) as base_url:
        lane = await dial(base_url)
        await waits_for(lane, 1)
        closing = asyncio.ensure_future(lane.close())
        await asyncio.sleep(0)
        while not closing.done():
            assert (lane.waiting_bytes, lane.waiting_messages) == (0, 0)
            await asyncio.sleep(0.001)


# Liveness


async def test_a_peer_that_answers_no_ping_is_given_up_within_ping_interval_and_timeout():
    budget = BRISK.ping_interval + BRISK.websocket_idle_timeout + BRISK.close_timeout
    async with tcp(DeadPeer) as base_url:
        lane = await dial(base_url)
        listener = lane.listener = Listener()
        began = asyncio.get_running_loop().time()
        with pytest.raises(LivenessExpired) as expired:
            await lane.read()
        assert asyncio.get_running_loop().time() - began < budget + 0.3
        assert expired.value.code == "upstream_websocket_liveness_timeout"
        assert isinstance(expired.value.__cause__, ConnectionClosed)
        assert listener.lost.is_set()


async def test_the_same_holds_for_a_peer_that_reads_on_and_closes_in_good_order():
    async with Simulator(faults=("no_pongs/handshake",)) as upstream:
        lane = await dial(upstream.url, BRISK, ("authorization", "Bearer sk-ada"))
        with pytest.raises(LivenessExpired):
            await lane.read()


async def test_a_peer_that_says_our_keepalive_words_is_an_ordinary_close():
    async def imitate(peer: ServerConnection) -> None:
        await peer.close(1011, "keepalive ping timeout")

    async with lane_to(imitate) as lane:
        with pytest.raises(UpstreamLost, match="1011"):
            await lane.read()


async def test_a_ping_shows_whether_somebody_is_there():
    async with lane_to(until_closed) as lane:
        assert await lane.answers_ping(5)
        await lane.close()
        assert not await lane.answers_ping(5)
    async with tcp(DeadPeer) as base_url:
        lane = await dial(base_url)
        assert not await lane.answers_ping(0.05)
        await lane.close()


# Dialling


async def test_the_handshake_has_the_targets_headers_and_offers_nothing_of_its_own():
    async with Simulator() as upstream:
        headers = (("authorization", "Bearer sk-ada"), ("openai-beta", "b"), ("user-agent", "codex"), ("x-own", "1"))
        lane = await dial(upstream.url, BRISK, *headers)
        (seen,) = upstream.observed.sockets
        await lane.close()
    library = {"host", "upgrade", "connection", "sec-websocket-key", "sec-websocket-version"}
    assert set(seen.header_names) - library == {name for name, _ in headers}
    assert seen.headers["user-agent"] == "codex"


@pytest.mark.parametrize("value", ["caf\xe9", "\xc3\xa9", "plain"])
async def test_a_header_value_beyond_ascii_passes_byte_by_byte(value: str):
    """The client's bytes were read as Latin-1, the way HTTP defines them."""
    got: list[bytes] = []

    class Listening(Answering):
        def data_received(self, data: bytes) -> None:
            got.append(data)
            super().data_received(data)

    async with tcp(lambda: Listening(refusal(400))) as base_url:
        with pytest.raises(UpstreamRefused):
            await dial(base_url, BRISK, ("x-title", value))
    assert b"\r\nx-title: " + value.encode("latin-1") + b"\r\n" in b"".join(got)


PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch):
    for name in PROXIES:
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with lane_to(until_closed) as lane:
        assert lane.remote_address[0] == "127.0.0.1"


async def test_a_refused_connection_has_sent_nothing():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectFailed) as failed:
        await dial(f"http://127.0.0.1:{port}")
    assert failed.value.code == "upstream_connect_failed"
    assert isinstance(failed.value.__cause__, OSError)


async def test_a_handshake_that_nobody_answers_ends_in_time():
    async with tcp(Mute) as base_url:
        with pytest.raises(ConnectFailed) as failed:
            await dial(base_url, Tunables(handshake_timeout=0.05))
    assert failed.value.code == "upstream_connect_timeout"


async def test_a_tcp_connection_has_a_limit_of_its_own():
    # A full backlog answers no SYN.
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for each in (first, second):
            each.setblocking(False)
            each.connect_ex(listener.getsockname())
        port = listener.getsockname()[1]
        with pytest.raises(ConnectFailed) as failed:
            await dial(f"http://127.0.0.1:{port}", Tunables(connect_timeout=0.05, handshake_timeout=30))
    assert failed.value.code == "upstream_connect_timeout"


async def test_an_upstream_without_tls_is_told_apart():
    async with tcp(lambda: Answering(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as base_url:
        with pytest.raises(ConnectFailed) as failed:
            await dial(base_url.replace("http", "https"))
    assert failed.value.code == "upstream_tls_failed"


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 101 Switching\r\n\r\n"])
async def test_an_upstream_that_speaks_no_websocket_has_run_nothing(answer: bytes):
    async with tcp(lambda: Answering(answer)) as base_url:
        with pytest.raises(ConnectFailed):
            await dial(base_url)


def refusal(status: int, *headers: str, body: bytes = b"{}") -> bytes:
    lines = [f"HTTP/1.1 {status} No", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def test_a_refused_handshake_is_the_upstreams_answer():
    body = b'{"error":{"type":"usage_limit_reached","message":"spent","resets_at":1796000000}}'
    async with tcp(lambda: Answering(refusal(429, "X-Codex-Active-Limit: codex", body=body))) as base_url:
        with pytest.raises(UpstreamRefused) as refused:
            await dial(base_url)
    told = refused.value.refusal
    assert (told.status, told.type, told.resets_at) == (429, "usage_limit_reached", 1796000000)
    assert told.headers["x-codex-active-limit"] == "codex"


async def test_a_redirect_is_not_followed_since_it_would_take_the_credentials_along():
    asked: list[bytes] = []

    class Elsewhere(Mute):
        def data_received(self, data: bytes) -> None:
            asked.append(data)

    async with tcp(Elsewhere) as elsewhere:
        answer = refusal(307, f"Location: {elsewhere.replace('http', 'ws')}/responses")
        async with tcp(lambda: Answering(answer)) as base_url:
            with pytest.raises(UpstreamRefused) as refused:
                await dial(base_url)
    assert refused.value.refusal.status == 307
    assert asked == []


async def test_a_dial_that_is_cancelled_leaves_no_socket_open():
    before = len(os.listdir("/proc/self/fd"))
    async with tcp(Mute) as base_url:
        dialling = asyncio.ensure_future(dial(base_url))
        await asyncio.sleep(0.05)
        dialling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dialling
    await asyncio.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) == before
