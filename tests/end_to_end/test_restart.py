"""A gateway that is stopped and started again on a socket that it inherits, as a service manager does it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from socket import create_server, socket

import pytest
from websockets.exceptions import ConnectionClosed

from tests.end_to_end.clients import Json, frame, turn
from tests.end_to_end.clients import socket as connect
from tests.support.processes import GatewayProcess, Installation, SimulatorProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CLIENTS = 200
BUSY = 50
PATIENCE = 60.0


@pytest.fixture
def listener() -> Iterator[socket]:
    """What the service manager holds all the time."""
    with create_server(("127.0.0.1", 0), backlog=1024) as made:
        yield made


@pytest.fixture
def installation(new_installation, upstream: SimulatorProcess) -> Installation:
    return new_installation()


def started(installation: Installation, listener: socket) -> GatewayProcess:
    extra = {"GATEWAY_STREAMS_PER_ACCOUNT": str(CLIENTS)}
    inherited = listener.fileno()
    return GatewayProcess(
        installation.data_dir, extra, ("--fd", str(inherited)), key=installation.key, files=[inherited]
    )


class Client:
    """Holds a connection until it is closed, then connects once more. `busy` says that it uses it all the time."""

    def __init__(self, gateway: GatewayProcess, busy: bool) -> None:
        self.ready = asyncio.Event()
        self.closed_with: int | None = None
        self._gateway = gateway
        self._busy = busy

    async def run(self) -> Json:
        """The last event on its second connection."""
        async with connect(self._gateway, open_timeout=PATIENCE) as first:
            assert (await turn(first, frame()))["type"] == "response.completed"
            self.ready.set()
            try:
                while self._busy:
                    await turn(first, frame())
                await first.recv()
            except ConnectionClosed as closed:
                self.closed_with = closed.rcvd.code if closed.rcvd else None
        # At once, without any pause and only once: nobody may refuse it.
        async with connect(self._gateway, open_timeout=PATIENCE) as second:
            return await turn(second, frame())


async def test_clients_that_reconnect_through_a_restart_are_all_served(
    installation: Installation, listener: socket, tmp_path: Path
) -> None:
    old = await asyncio.to_thread(started, installation, listener)
    old.wait_ready()
    clients = [Client(old, busy=number < BUSY) for number in range(CLIENTS)]
    running = asyncio.gather(*(client.run() for client in clients))
    try:
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(client.ready.wait() for client in clients))
        old.send_signal(signal.SIGTERM)
        # The next one is started when the old one has ended: whoever comes in between waits at the socket.
        assert await asyncio.to_thread(old.wait, 30) == 0
        new = await asyncio.to_thread(started, installation, listener)
        try:
            ended = await running
        finally:
            await asyncio.to_thread(new.stop)
    finally:
        running.cancel()
    assert [client.closed_with for client in clients] == [1012] * CLIENTS
    assert [event["type"] for event in ended] == ["response.completed"] * CLIENTS
    assert {turn.outcome for turn in new.ledger.turns()} == {"completed"}
