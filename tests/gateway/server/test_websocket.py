from __future__ import annotations

import asyncio
import json
import time

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import CloseCode, Frame, Opcode

from tests.gateway.server.harness import RawClient, ServerProcess, head

MIB = 1024 * 1024
HANDSHAKE = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
)


async def open_raw(client: RawClient, path: str, *headers: str) -> None:
    """A WebSocket on which the test writes frames byte by byte and answers nothing by itself."""
    await client.write(head(path, *HANDSHAKE, *headers))
    assert (await client.response_head())[0] == 101


async def read_frame(client: RawClient) -> tuple[int, bytes]:
    first, length = await client.reader.readexactly(2)
    if length == 126:
        length = int.from_bytes(await client.reader.readexactly(2))
    return first & 0x0F, await client.reader.readexactly(length)


def masked(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin=fin).serialize(mask=True)


async def closed_with(client: RawClient) -> tuple[int, str]:
    """Code and reason of the close frame that comes next."""
    opcode, data = await read_frame(client)
    assert opcode == Opcode.CLOSE
    return int.from_bytes(data[:2]), data[2:].decode()


async def test_texts_are_written_around_send_only_on_an_open_socket_and_to_a_client_that_keeps_up(
    server: ServerProcess,
) -> None:
    async with server.websocket("/ws_written?key=ws_written") as websocket:
        assert [await websocket.recv() for _ in range(3)] == ["a", "é", "l" * 70_000]
        await websocket.send("go on")
        texts = [text async for text in websocket]
    assert set(texts[:-2]) == {"x" * 65536}
    assert texts[-2:] == ["drained", "b"]
    assert await server.recorded("ws_written") == [False, True, True, False]


# The handshake


async def test_headers_of_the_accept_arrive_and_repeated_ones_stay_apart(server: ServerProcess) -> None:
    async with server.websocket("/ws_echo?key=accept") as websocket:
        assert websocket.response is not None
        assert websocket.response.headers.get_all("x-turn") == ["one", "two"]
        assert "server" not in websocket.response.headers


async def test_compression_is_offered_and_never_accepted(server: ServerProcess) -> None:
    async with server.websocket("/ws_echo?key=deflate", compression="deflate") as websocket:
        assert websocket.request is not None
        assert "permessage-deflate" in websocket.request.headers["sec-websocket-extensions"]
        assert websocket.response is not None
        assert "sec-websocket-extensions" not in websocket.response.headers


async def test_the_application_sees_all_headers_and_chooses_a_subprotocol(server: ServerProcess) -> None:
    headers = [("x-a", "1"), ("x-a", "Ã\x85"), ("x-large", "l" * 60_000)]
    async with server.websocket(
        "/ws_scope?key=scope", additional_headers=headers, subprotocols=["a", "b"], origin="vscode-file://app"
    ) as websocket:
        scope = json.loads(await websocket.recv())
        assert websocket.subprotocol == "b"
        with pytest.raises(ConnectionClosed) as closed:
            await websocket.recv()
    seen = [(name, value) for name, value in scope["headers"]]
    assert [value for name, value in seen if name == "x-a"] == ["1", "Ã\x85"]
    assert ("origin", "vscode-file://app") in seen
    assert dict(seen)["x-large"] == "l" * 60_000
    assert scope["extensions"] == ["pointsman.flow", "websocket.http.response"]
    assert scope["path"] == "/ws_scope"
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4001, "für immer")
    end = await server.recorded("scope")
    assert (end["code"], end["reason"]) == (4001, "für immer")


async def test_a_denial_carries_status_headers_and_body_at_once(server: ServerProcess) -> None:
    began = time.monotonic()
    with pytest.raises(InvalidStatus) as denied:
        await server.websocket("/ws_deny")
    assert time.monotonic() - began < 0.2
    response = denied.value.response
    assert response.status_code == 429
    assert response.headers["retry-after"] == "7"
    assert response.body == b'{"a":1}'


async def test_a_close_before_the_accept_is_a_json_403(server: ServerProcess) -> None:
    with pytest.raises(InvalidStatus) as denied:
        await server.websocket("/ws_deny?how=close")
    assert denied.value.response.status_code == 403
    assert json.loads(denied.value.response.body or b"")["error"]["code"] == "websocket_refused"


@pytest.mark.parametrize("query", ["", "&raise=1"])
async def test_an_application_that_ends_before_the_accept_is_a_json_500(server: ServerProcess, query: str) -> None:
    with pytest.raises(InvalidStatus) as denied:
        await server.websocket(f"/silent?accept=no{query}")
    assert denied.value.response.status_code == 500
    assert json.loads(denied.value.response.body or b"")["error"]["code"] == "internal_error"


async def test_a_handshake_that_nobody_answers_is_a_json_503(tight: ServerProcess) -> None:
    began = time.monotonic()
    with pytest.raises(InvalidStatus) as denied:
        await tight.websocket("/ws_deaf?accept=no&key=unanswered")
    assert 0.25 < time.monotonic() - began < 1.5
    assert denied.value.response.status_code == 503
    assert json.loads(denied.value.response.body or b"")["error"]["code"] == "accept_timeout"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (HANDSHAKE[:3], 400),
        (HANDSHAKE[:2] + HANDSHAKE[3:], 400),
        ((*HANDSHAKE[:3], "Sec-WebSocket-Version: 8"), 400),
        ((*HANDSHAKE, "Content-Length: 3"), 400),
        ((*HANDSHAKE, f"X-Large: {'l' * 66_000}"), 400),
    ],
)
async def test_a_wrong_handshake_is_refused_as_json(
    server: ServerProcess, headers: tuple[str, ...], status: int
) -> None:
    async with server.connect() as client:
        response = await client.request("/ws_echo", *headers)
    assert response.status == status
    assert response.json()["error"]["code"] in ("invalid_handshake", "headers_too_large")


async def test_a_post_is_no_handshake(server: ServerProcess) -> None:
    async with server.connect() as client:
        response = await client.request("/ws_echo", *HANDSHAKE, method="POST")
    assert (response.status, response.json()["error"]["code"]) == (405, "invalid_handshake")


async def test_frames_sent_before_the_answer_are_kept(server: ServerProcess) -> None:
    async with server.connect() as client:
        await client.write(head("/ws_echo?key=hasty", *HANDSHAKE) + masked(Opcode.TEXT, b"hasty"))
        assert (await client.response_head())[0] == 101
        assert await read_frame(client) == (Opcode.TEXT, b"hasty")


async def test_a_second_handshake_before_the_answer_is_no_handshake(server: ServerProcess) -> None:
    async with server.connect() as client:
        await client.write(head("/ws_echo?key=twice", *HANDSHAKE) * 2)
        assert (await client.response_head())[0] == 101
        assert (await closed_with(client))[0] == CloseCode.PROTOCOL_ERROR


# Messages


@pytest.mark.parametrize("message", ["", "grüß dich", b"", b"\xff\x00", "x" * 125, "x" * 126, b"x" * 70_000])
async def test_a_message_comes_back_as_it_was_sent(server: ServerProcess, message: str | bytes) -> None:
    async with server.websocket("/ws_echo?key=echo") as websocket:
        await websocket.send(message)
        assert await websocket.recv() == message


async def test_12_mib_arrive_in_one_message(server: ServerProcess) -> None:
    async with server.websocket("/ws_echo?key=large") as websocket:
        await websocket.send("ü" * (6 * MIB))
        assert await websocket.recv() == "ü" * (6 * MIB)


async def test_a_message_in_fragments_arrives_whole(server: ServerProcess) -> None:
    async with server.connect() as client:
        await open_raw(client, "/ws_echo?key=fragments")
        euro = "€".encode()
        await client.write(masked(Opcode.TEXT, euro[:1], fin=False))
        await client.write(masked(Opcode.PING, b"between"))
        await client.write(masked(Opcode.CONT, euro[1:]))
        assert await read_frame(client) == (Opcode.PONG, b"between")
        assert await read_frame(client) == (Opcode.TEXT, euro)


@pytest.mark.parametrize("kind", ["text", "bytes"])
async def test_20_mib_leave_in_one_message(server: ServerProcess, kind: str) -> None:
    async with server.websocket(f"/ws_send?size={20 * MIB}&kind={kind}") as websocket:
        assert len(await websocket.recv()) == 20 * MIB


async def test_a_message_over_the_limit_closes_1009_with_a_frame(tight: ServerProcess) -> None:
    async with tight.websocket("/ws_echo?key=over") as websocket:
        await websocket.send("x" * 100_000)
        assert len(await websocket.recv()) == 100_000
        await websocket.send("x" * 100_001)
        with pytest.raises(ConnectionClosed) as closed:
            await websocket.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == CloseCode.MESSAGE_TOO_BIG
    assert "100000" in closed.value.rcvd.reason
    code, reason = await tight.recorded("over")
    assert (code, "100000" in reason) == (1009, True)


async def test_an_application_cannot_send_a_message_over_the_limit(tight: ServerProcess) -> None:
    async with tight.websocket("/ws_send?size=100001") as websocket:
        with pytest.raises(ConnectionClosed) as closed:
            await websocket.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1011


async def test_text_that_is_not_utf_8_closes_1007(server: ServerProcess) -> None:
    async with server.connect() as client:
        await open_raw(client, "/ws_echo?key=utf8")
        await client.write(masked(Opcode.TEXT, b"\xff"))
        assert (await closed_with(client))[0] == CloseCode.INVALID_DATA
    assert (await server.recorded("utf8"))[0] == CloseCode.INVALID_DATA


async def test_a_frame_without_a_mask_closes_1002(server: ServerProcess) -> None:
    async with server.connect() as client:
        await open_raw(client, "/ws_echo?key=unmasked")
        await client.write(Frame(Opcode.TEXT, b"bare").serialize(mask=False))
        assert (await closed_with(client))[0] == CloseCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("key", "message", "count", "reason"),
    [("many", b"x", 8, "More than 8 messages wait"), ("much", b"x" * 80_000, 3, "More than 200000 bytes wait")],
)
async def test_an_application_that_does_not_listen_costs_its_client_the_socket(
    tight: ServerProcess, key: str, message: bytes, count: int, reason: str
) -> None:
    async with tight.websocket(f"/ws_deaf?key={key}") as websocket:
        assert await tight.recorded(key) == "deaf"
        for _ in range(count):
            await websocket.send(message)
        with pytest.raises(ConnectionClosed) as closed:
            await websocket.recv()
        await tight.get(f"/listen?key={key}")
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, reason in closed.value.rcvd.reason) == (CloseCode.POLICY_VIOLATION, True)
    received, code, why = await tight.recorded(f"{key}-end")
    # The connect message was one of those that waited; the one over the bound was not queued.
    assert (received, code, reason in why) == (count, CloseCode.POLICY_VIOLATION, True)


async def test_300_mb_to_a_client_that_does_not_read_stay_out_of_memory(server: ServerProcess) -> None:
    before = server.rss()
    async with server.connect() as client:
        await open_raw(client, "/flood?key=ws-flood")
        assert await server.recorded("ws-flood") < 16 * MIB
        assert server.rss() - before < 8 * MIB


# The end


async def test_the_application_hears_the_code_and_reason_of_the_client(server: ServerProcess) -> None:
    async with server.websocket("/ws_echo?key=client-close") as websocket:
        await websocket.close(4321, "genug für heute")
    assert await server.recorded("client-close") == [4321, "genug für heute"]


async def test_a_close_frame_without_a_code_is_1005(server: ServerProcess) -> None:
    async with server.connect() as client:
        await open_raw(client, "/ws_echo?key=no-code")
        await client.write(masked(Opcode.CLOSE, b""))
        assert await read_frame(client) == (Opcode.CLOSE, b"")
        assert await client.at_end()
    assert await server.recorded("no-code") == [1005, ""]


async def test_a_client_that_vanishes_is_1006_within_100_ms(server: ServerProcess) -> None:
    async with server.connect() as client:
        await open_raw(client, "/ws_echo?key=vanished")
        left = time.monotonic()
    assert await server.recorded("vanished") == [1006, ""]
    assert time.monotonic() - left < 0.1


async def test_messages_before_the_close_are_delivered_before_it(server: ServerProcess) -> None:
    async with server.connect() as client:
        await open_raw(client, "/ws_collect?key=ordered")
        await client.write(
            masked(Opcode.TEXT, b"first") + masked(Opcode.TEXT, b"last") + masked(Opcode.CLOSE, b"\x03\xe8")
        )
        assert await read_frame(client) == (Opcode.CLOSE, b"\x03\xe8")
    assert await server.recorded("ordered") == ["first", "last", 1000]


async def test_what_arrives_after_the_application_closed_is_not_delivered(server: ServerProcess) -> None:
    async with server.connect() as client:
        await open_raw(client, "/ws_scope?key=after-close")
        while (await read_frame(client))[0] != Opcode.CLOSE:
            pass
        await client.write(masked(Opcode.TEXT, b"late") + masked(Opcode.CLOSE, (4001).to_bytes(2)))
    assert (await server.recorded("after-close"))["code"] == 4001


async def test_send_after_the_client_left_raises_os_error(server: ServerProcess) -> None:
    async with server.websocket("/ws_send_after?key=late"):
        pass
    assert await server.recorded("late") == "ClientDisconnected"


@pytest.mark.parametrize("query", ["", "?raise=1"])
async def test_an_application_that_ends_without_closing_is_closed_1011_at_once(
    server: ServerProcess, query: str
) -> None:
    async with server.websocket(f"/silent{query}") as websocket:
        began = time.monotonic()
        with pytest.raises(ConnectionClosed) as closed:
            await websocket.recv()
    assert time.monotonic() - began < 0.2
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == CloseCode.INTERNAL_ERROR


async def test_a_code_that_no_close_frame_may_carry_is_refused(server: ServerProcess) -> None:
    async with server.websocket("/ws_wrong_close?key=wrong-close") as websocket:
        with pytest.raises(ConnectionClosed):
            await websocket.recv()
    assert "1006 is no code for a close frame" in await server.recorded("wrong-close")


async def test_a_client_that_does_not_answer_the_close_is_dropped(tight: ServerProcess) -> None:
    async with tight.connect() as client:
        await open_raw(client, "/silent")
        began = time.monotonic()
        assert (await closed_with(client))[0] == 1011
        with pytest.raises(ConnectionError):
            await client.reader.read()
    assert time.monotonic() - began < 1.5


# Liveness


async def test_a_client_that_answers_pings_stays(tight: ServerProcess) -> None:
    async with tight.websocket("/ws_echo?key=alive") as websocket:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(websocket.recv(), 1)
        await websocket.send("still here")
        assert await websocket.recv() == "still here"


async def test_a_client_that_answers_no_ping_is_dropped_and_the_application_told(tight: ServerProcess) -> None:
    async with tight.connect() as client:
        await open_raw(client, "/ws_echo?key=deaf")
        opcode, _ = await read_frame(client)
        assert opcode == Opcode.PING
        began = time.monotonic()
        assert await tight.recorded("deaf") == [1006, "No pong within 0.4 s."]
        assert time.monotonic() - began < 1.5


async def test_a_client_in_the_middle_of_a_long_message_is_alive(tight: ServerProcess) -> None:
    """Between the frames of a message a pong may come, within one frame it cannot."""
    frame = masked(Opcode.BINARY, b"s" * 90_000)
    async with tight.connect() as client:
        await open_raw(client, "/ws_echo?key=uploading")
        for start in range(0, len(frame), 9000):
            await client.write(frame[start : start + 9000])
            await asyncio.sleep(0.1)
        while (await read_header(client))[0] != Opcode.BINARY:
            pass


async def test_a_client_that_reads_slowly_is_alive_though_no_ping_reaches_it_in_time(tight: ServerProcess) -> None:
    async with tight.connect(receive_buffer=32_768) as client:
        await open_raw(client, "/ws_flood")
        began = time.monotonic()
        while time.monotonic() - began < 1.3:
            assert await client.reader.read(20_000)
            await asyncio.sleep(0.05)


async def read_header(client: RawClient) -> tuple[int, int]:
    """Opcode and length of the next frame; control frames are read whole."""
    first, length = await client.reader.readexactly(2)
    if length < 126:
        await client.reader.readexactly(length)
    return first & 0x0F, length
