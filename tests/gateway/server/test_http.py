from __future__ import annotations

import asyncio
import hashlib
import time

import pytest

from tests.gateway.server.apps import pieces
from tests.gateway.server.harness import ServerProcess, head

MIB = 1024 * 1024


async def test_300_mb_to_a_client_that_does_not_read_stay_out_of_memory(server: ServerProcess) -> None:
    before = server.rss()
    async with server.connect() as client:
        await client.write(head("/flood?key=flood"))
        taken = await server.recorded("flood")
        assert taken < 16 * MIB
        assert server.rss() < 64 * MIB + before
        assert server.rss() - before < 8 * MIB


async def test_a_client_that_reads_slowly_gets_every_byte_in_order(server: ServerProcess) -> None:
    async with server.connect() as client:
        await client.write(head("/numbered"))
        _, headers = await client.response_head()
        received = hashlib.sha256()
        left = int(headers["content-length"])
        while left:
            data = await client.reader.read(100_000)
            assert data
            received.update(data)
            left -= len(data)
            if left % 5 == 0:
                await asyncio.sleep(0.001)
    assert received.hexdigest() == hashlib.sha256(b"".join(pieces())).hexdigest()


async def test_a_send_that_waits_for_the_client_ends_when_the_client_leaves(server: ServerProcess) -> None:
    async with server.connect() as client:
        await client.write(head("/blocked?key=blocked"))
        await client.response_head()
    assert await server.recorded("blocked") == "ClientDisconnected"


async def test_the_bytes_that_wait_tell_a_slow_client_from_a_stalled_one(server: ServerProcess) -> None:
    async with server.connect(receive_buffer=32_768) as client:
        await client.write(head("/progress?key=slow"))
        reading = asyncio.create_task(read_slowly(client.reader))
        recorded = await server.recorded("slow")
        reading.cancel()
    seen = recorded["seen"]
    assert len(seen) == 20
    assert seen == sorted(seen, reverse=True)
    assert not recorded["returned"], "one large piece waits like many small ones"
    # What the kernel has taken without sending it is little, so that progress is the client's.
    assert seen[0] > 8_000_000 - 800_000


async def test_pieces_are_written_around_send_only_within_a_body_and_to_a_client_that_keeps_up(
    server: ServerProcess,
) -> None:
    async with server.connect() as client:
        response = await client.request("/written?key=written")
    assert response.body.startswith(b"head,a,b,xxx")
    assert response.body.endswith(b"xend,more,last")
    assert await server.recorded("written") == [False, False, True, True, False]


async def read_slowly(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):  # the pause is the slowness
        await asyncio.sleep(0.01)


async def test_send_after_the_client_left_raises_os_error(server: ServerProcess) -> None:
    async with server.connect() as client:
        await client.write(head("/send_after_leaving?key=left"))
        await client.response_head()
    name, text, again = await server.recorded("left")
    assert (name, again) == ("ClientDisconnected", "http.disconnect")
    assert "closed the connection" in text


@pytest.mark.parametrize(
    ("phase", "request_bytes"),
    [
        ("idle-stream", head("/idle?key=idle-stream&headers=yes")),
        ("before-the-response", head("/idle?key=before-the-response")),
        ("during-upload", head("/idle?key=during-upload", method="POST", length=1000) + b"a part"),
    ],
)
async def test_a_disconnect_is_received_within_100_ms(server: ServerProcess, phase: str, request_bytes: bytes) -> None:
    async with server.connect() as client:
        await client.write(request_bytes)
        if phase == "idle-stream":
            await client.response_head()
        else:
            await server.get("/echo")
        left = time.monotonic()
    assert await server.recorded(phase) - left < 0.1


async def test_an_application_starts_with_the_headers_and_answers_before_the_body(server: ServerProcess) -> None:
    async with server.connect() as client:
        await client.write(head("/early", method="POST", length=50_000_000))
        response = await client.response()
        assert response.status == 401
        assert response.headers["connection"] == "close"
        assert await client.at_end()


async def test_the_body_arrives_while_it_is_uploaded(server: ServerProcess) -> None:
    async with server.connect() as client:
        await client.write(head("/first_chunk", method="POST", length=11) + b"hello")
        await client.response_head()
        assert await client.chunk() == b"hello"
        await client.write(b" world")
        assert await client.chunk() == b" 11"


async def test_a_client_may_send_all_of_a_large_upload_and_then_read_an_early_answer(server: ServerProcess) -> None:
    async with server.connect() as client:
        response = await client.request("/early", method="POST", body=b"x" * 20_000_000)
        assert response.status == 401
        assert response.json() == "no"


async def test_a_large_body_arrives_whole_and_is_kept_once(server: ServerProcess) -> None:
    data = bytes(range(256)) * 4096 * 48
    before = server.rss()
    async with server.connect() as client:
        response = await client.request("/echo", method="POST", body=data)
    assert response.json()["sha"] == hashlib.sha256(data).hexdigest()
    assert server.rss() - before < 3 * len(data)


async def test_the_scope_says_what_was_asked(server: ServerProcess) -> None:
    async with server.connect() as client:
        scope = (await client.request("/scope_?a=%2F", "X-A: 1", "X-A: Ã\x85")).json()
    assert scope["asgi"]["spec_version"] == "2.4"
    assert (scope["path"], scope["query_string"], scope["method"]) == ("/scope_", "a=%2F", "GET")
    assert [value for name, value in scope["headers"] if name == "x-a"] == ["1", "Ã\x85"]
    assert scope["server"] == ["127.0.0.1", server.port]
    assert scope["extensions"] == ["pointsman.flow"]


@pytest.mark.parametrize("query", ["", "?raise=1"])
async def test_an_application_that_ends_without_an_answer_is_answered_500_at_once(
    server: ServerProcess, query: str
) -> None:
    began = time.monotonic()
    response = await server.get(f"/silent{query}")
    assert time.monotonic() - began < 0.2
    assert (response.status, response.headers["content-type"]) == (500, "application/json")
    assert response.json()["error"]["code"] == "internal_error"
    assert response.json()["error"]["type"] == "server_error"


async def test_an_application_that_sends_a_broken_header_is_answered_500(server: ServerProcess) -> None:
    response = await server.get("/bad_header")
    assert response.status == 500
    assert "x-injected" not in response.headers


async def test_a_response_that_was_begun_and_not_ended_is_cut(server: ServerProcess) -> None:
    async with server.connect() as client:
        await client.write(head("/silent?begun=1&raise=1"))
        await client.response_head()
        assert await client.chunk() == b"half"
        assert await client.at_end()


async def test_a_response_shorter_than_its_length_is_cut(server: ServerProcess) -> None:
    async with server.connect() as client:
        await client.write(head("/silent?length=10"))
        await client.response_head()
        assert await client.reader.read() == b"12345"


async def test_a_response_longer_than_its_length_is_refused(server: ServerProcess) -> None:
    response = await server.get("/silent?length=3")
    assert response.status == 500


async def test_head_gets_the_headers_alone_and_the_connection_goes_on(server: ServerProcess) -> None:
    async with server.connect() as client:
        first = await client.request("/echo", method="HEAD")
        assert int(first.headers["content-length"]) > 0
        assert (await client.request("/echo")).json()["method"] == "GET"


async def test_an_application_that_outstays_its_client_is_cancelled(tight: ServerProcess) -> None:
    async with tight.connect() as client:
        await client.write(head("/outstay?key=outstay"))
        await client.response_head()
    assert await tight.recorded("outstay") == "cancelled"


async def test_an_upload_that_nobody_reads_is_refused_at_its_bound(tight: ServerProcess) -> None:
    async with tight.connect() as client:
        response = await client.request("/ignore_body?key=full", method="POST", body=b"x" * 300_000)
        assert response.status == 400
        assert response.json()["error"]["code"] == "upload_overflow"
        assert "200000 bytes" in response.json()["error"]["message"]
