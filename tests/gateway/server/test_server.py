from __future__ import annotations

import asyncio
import signal
import socket
import time

import pytest
from websockets.exceptions import ConnectionClosed

from gateway.server import GatewayServer
from tests.gateway.server.harness import ServerProcess, head

CLEAN_END = b"7\r\ncleaned\r\n0\r\n\r\n"


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_server_without_an_endpoint_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least one endpoint"):
        GatewayServer(None, [])  # type: ignore[arg-type]


def test_a_taken_port_stops_the_start_with_one_exception_and_what_was_started_is_stopped() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with ServerProcess(port=port, hooks="both") as process:
            assert process.wait() == 1
            assert [process.line(), process.line()] == ["starting", "stopped"]
            last = process.log().strip().splitlines()[-1]
    assert last == (
        f"gateway.server.errors.PortTaken: Another process listens on 127.0.0.1:{port}; stop it or choose another port."
    )


def test_a_start_hook_that_fails_stops_the_start_with_its_exception() -> None:
    with ServerProcess(hooks="fail") as process:
        assert process.wait() == 1
        with pytest.raises(EOFError, match="LookupError: the start fails, as asked"):
            process.line()


async def test_an_inherited_socket_is_served_and_released() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        process = ServerProcess(fd=listening.fileno(), hooks="finish")
        port = listening.getsockname()[1]
    with process:
        assert process.started().port == port
        assert (await process.get("/echo")).status == 200
        process.signal()
        assert [process.line(), process.line()] == ["draining", "not listening"]
        assert refuses(port)


async def test_the_hooks_run_before_listening_and_before_the_end() -> None:
    with ServerProcess(hooks="both") as process:
        assert process.line() == "starting"
        process.started()
        process.signal(signal.SIGINT)
        assert [await process.says(), await process.says()] == ["stopped", "ended"]
        assert process.wait() == 0


async def test_while_it_drains_new_connections_are_refused_and_running_requests_are_finished() -> None:
    with ServerProcess(hooks="finish") as process:
        process.started()
        async with process.connect() as client, process.connect() as other:
            await client.write(head("/wait?key=waiting"))
            assert (await other.request("/await?key=waiting")).json() == "started"
            process.signal()
            assert [await process.says(), await process.says()] == ["draining", "not listening"]
            assert refuses(process.port)
            assert (await other.request("/echo")).status == 200
            assert (await client.response()).json() == "finished"
            assert await client.at_end()
        assert await process.says() == "ended"
        assert process.log() == ""


async def test_a_request_on_its_way_when_the_server_ends_is_answered_as_the_last_of_its_connection() -> None:
    with ServerProcess(hooks="both", retire_grace=1.5) as process:
        process.started()
        async with (
            process.connect() as fresh,
            process.connect() as used,
            process.connect() as probe,
            process.connect() as idle,
        ):
            # Connections are accepted in their order.
            for client in (used, probe, idle):
                assert (await client.request("/echo")).status == 200
            process.signal()
            assert await process.says() == "stopped"
            while not refuses(process.port):
                await asyncio.sleep(0.01)
            # What comes after the listener in the server's shutdown has happened by the time of an answer.
            assert (await probe.request("/echo")).status == 200
            for client in (fresh, used):
                answer = await client.request("/echo")
                assert (answer.status, answer.headers["connection"]) == (200, "close")
                assert await client.at_end()
            assert await idle.at_end()


async def test_a_second_signal_ends_the_drain() -> None:
    with ServerProcess(hooks="forever") as process:
        process.started()
        async with process.connect() as client:
            await client.write(head("/drip"))
            await client.response_head()
            process.signal()
            assert await process.says() == "draining"
            began = time.monotonic()
            process.signal()
            assert (await client.reader.read()).endswith(CLEAN_END)
        assert await process.says() == "ended"
        assert time.monotonic() - began < 1
        assert "second signal" in process.log()


async def test_at_the_end_each_application_is_cancelled_and_decides_how_its_stream_ends() -> None:
    with ServerProcess() as process:
        process.started()
        async with (
            process.connect() as stream,
            process.connect() as unanswered,
            process.connect() as cut,
            process.websocket("/ws_stay?key=a") as plain,
            process.websocket("/ws_stay?key=b&close=1") as closing,
            process.connect() as keep_alive,
        ):
            await stream.write(head("/drip"))
            await stream.response_head()
            await unanswered.write(head("/ignore_body?key=c"))
            await cut.write(head("/outstay?key=d"))
            await cut.response_head()
            for key in "abc":
                await keep_alive.request(f"/await?key={key}")
            process.signal()
            assert (await stream.reader.read()).endswith(CLEAN_END)
            # This one wrote no end, so that nobody takes it for complete.
            assert await cut.reader.read() == b"5\r\nhello\r\n"
            refused = await unanswered.response()
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            for websocket, code, reason in ((plain, 1012, "restarting"), (closing, 4002, "cleaned")):
                with pytest.raises(ConnectionClosed) as closed:
                    await websocket.recv()
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == code
                assert reason in closed.value.rcvd.reason
            assert await keep_alive.at_end()
        assert await process.says() == "ended"
        assert process.wait() == 0
        assert "Traceback" not in process.log()


async def test_a_websocket_whose_application_ended_does_not_disturb_the_shutdown() -> None:
    with ServerProcess(close_timeout=0.3) as process:
        process.started()
        async with process.connect() as client, process.connect() as stream:
            handshake = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
            await client.write(head("/silent", *handshake, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="))
            await client.response_head()
            await stream.write(head("/drip"))
            await stream.response_head()
            process.signal()
            assert (await stream.reader.read()).endswith(CLEAN_END)
        assert process.wait() == 0
        assert "KeyError" not in process.log()


async def test_requests_leave_no_line_in_the_log() -> None:
    with ServerProcess() as process:
        process.started()
        await process.get("/echo")
        async with process.websocket("/ws_echo?key=quiet") as websocket:
            await websocket.send("x")
            await websocket.recv()
        await process.recorded("quiet")
        async with process.connect() as client:
            await client.write(b"nonsense\r\n\r\n")
            await client.response()
        assert process.log() == ""
