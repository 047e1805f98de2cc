from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from twisted.internet.protocol import Protocol, ServerFactory

from gateway.server.errors import ListenError, PortTaken
from gateway.server.limits import InheritedSocket, TcpEndpoint
from gateway.server.loop import reactor_loop
from gateway.server.transport import GatewayTransport, OpenConnections, listen
from tests.gateway.server.harness import ServerProcess, head


class Pair:
    """A transport on one end of a connection and a plain socket on the other. Nothing runs but what a test runs."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.peer = socket.create_connection(listening.getsockname(), 1)
            accepted, address = listening.accept()
        self.peer.setblocking(False)
        nothing = lambda selectable: None  # noqa: E731
        reactor = SimpleNamespace(addReader=nothing, addWriter=nothing, removeReader=nothing, removeWriter=nothing)
        self.open = OpenConnections()
        port = SimpleNamespace(open=self.open, stall_timeout=60, _realPortNumber=0)
        self.transport = GatewayTransport(accepted, Protocol(), address, port, 0, reactor)

    def arrived(self) -> bytes:
        """What the peer can read now."""
        parts = []
        try:
            while data := self.peer.recv(1_000_000):
                parts.append(data)
        except BlockingIOError:
            pass
        return b"".join(parts)

    def end_iteration(self) -> None:
        """Let the callbacks run that a loop runs at the end of an iteration."""
        reactor_loop().run_until_complete(asyncio.sleep(0))

    def close(self) -> None:
        self.peer.close()
        self.transport.socket.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def test_what_is_written_at_once_leaves_before_the_iteration_ends_and_stays_behind_what_was_written(pair: Pair) -> None:
    for data in (b"1,", b"2,"):
        pair.transport.write_at_once(data)
    assert pair.arrived() == b"1,2,"
    pair.transport.write(b"3,")
    pair.transport.write(b"4,")
    pair.transport.write_at_once(b"5")
    assert pair.arrived() == b"3,"
    pair.end_iteration()
    assert pair.arrived() == b"4,5"


def test_the_first_write_of_an_iteration_leaves_at_once_and_the_others_together_at_its_end(pair: Pair) -> None:
    for data in (b"first,", b"second,", b"third"):
        pair.transport.write(data)
    assert pair.arrived() == b"first,"
    assert pair.transport.buffered() == len(b"second,third")
    pair.end_iteration()
    assert (pair.arrived(), pair.transport.buffered()) == (b"second,third", 0)
    pair.transport.write(b"next")
    assert pair.arrived() == b"next"


def test_writes_of_one_iteration_do_not_pile_up_until_its_end(pair: Pair) -> None:
    for _ in range(40):
        pair.transport.write(b"x" * 1000)
    assert len(pair.arrived()) >= 17_000
    assert pair.transport.buffered() < 17_000


def test_what_is_written_while_the_kernel_is_full_follows_in_order(pair: Pair) -> None:
    pair.transport.write(b"a" * 5_000_000)
    assert pair.transport.buffered() > 0
    pair.transport.write_pair(b"bb", b"c" * 100_000)
    pair.transport.writeSequence([b"d", b"e"])
    pair.end_iteration()
    received = bytearray()
    while len(received) < 5_100_004:
        received += pair.arrived()
        pair.transport.doWrite()
    assert received == b"a" * 5_000_000 + b"bb" + b"c" * 100_000 + b"de"
    assert pair.transport.buffered() == 0
    assert pair.transport.bytes_sent == len(received)


def test_a_write_to_a_broken_connection_raises_nothing_and_is_reported_by_the_reactors_next_write(pair: Pair) -> None:
    pair.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    pair.peer.close()
    pair.transport.write(b"lost")
    assert pair.transport.buffered() == 4
    assert isinstance(pair.transport.doWrite(), Exception)


async def test_the_last_connection_to_close_wakes_whoever_waits_for_it() -> None:
    connections = OpenConnections()
    connections.transports = {1, 2}  # type: ignore[arg-type]
    waiting = asyncio.create_task(connections.wait_empty())
    connections.remove(1)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert not waiting.done()
    connections.remove(2)  # type: ignore[arg-type]
    await asyncio.wait_for(waiting, 1)


def test_a_taken_port_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=f"127.0.0.1:{port}; stop it or choose another port"):
            listen(TcpEndpoint("127.0.0.1", port), ServerFactory(), OpenConnections(), 1)


def test_a_host_that_is_not_here_is_named_with_what_to_do() -> None:
    with pytest.raises(ListenError, match=r"Cannot listen on 192\.0\.2\.1:0: .*choose a host") as raised:
        listen(TcpEndpoint("192.0.2.1", 0), ServerFactory(), OpenConnections(), 1)
    assert not isinstance(raised.value, PortTaken)


def test_a_descriptor_that_is_closed_is_refused() -> None:
    read, write = os.pipe()
    os.close(read)
    os.close(write)
    with pytest.raises(ListenError, match=f"{read} is no open socket"):
        listen(InheritedSocket(read), ServerFactory(), OpenConnections(), 1)


def test_a_socket_that_does_not_listen_is_refused_and_left_open() -> None:
    with socket.socket() as idle:
        with pytest.raises(ListenError, match="no listening TCP socket"):
            listen(InheritedSocket(idle.fileno()), ServerFactory(), OpenConnections(), 1)
        assert idle.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM


async def test_a_peer_that_takes_nothing_of_what_is_left_is_given_up(tight: ServerProcess) -> None:
    """The response is complete, so no application watches any more; only the transport can end this."""
    async with tight.connect() as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.write(head("/whole?key=whole", "Connection: close"))
        assert await tight.recorded("whole") == "sent"
        before = tight.open_sockets()
        while tight.open_sockets() >= before:
            await tight.get("/echo")
