from __future__ import annotations

import asyncio
import time

import pytest

from tests.gateway.server.harness import RawClient, Response, ServerProcess, head


async def refused(client: RawClient, data: bytes) -> Response:
    """The answer to `data`, after which the server has closed."""
    await client.write(data)
    response = await client.response()
    assert response.headers["content-type"] == "application/json"
    assert response.headers["connection"] == "close"
    assert set(response.json()["error"]) == {"message", "type", "code", "param"}
    assert await client.at_end()
    return response


# Keep-alive and pipelining


async def test_requests_follow_one_another_on_a_connection(server: ServerProcess) -> None:
    async with server.connect() as client:
        for size in (0, 1, 100_000, 5):
            response = await client.request("/echo", method="POST", body=b"x" * size)
            assert response.json()["size"] == size
            assert "connection" not in response.headers


async def test_pipelined_requests_are_answered_in_order(server: ServerProcess) -> None:
    bodies = [b"x" * size for size in (3, 0, 20_000, 40_000, 1)]
    requests = [head("/echo", method="POST", length=len(body)) + body for body in bodies]
    async with server.connect() as client:
        await client.write(b"".join(requests))
        sizes = [(await client.response()).json()["size"] for _ in bodies]
    assert sizes == [3, 0, 20_000, 40_000, 1]


async def test_a_client_that_asks_to_close_is_closed_after_its_answer(server: ServerProcess) -> None:
    async with server.connect() as client:
        response = await client.request("/echo", "Connection: close")
        assert response.headers["connection"] == "close"
        assert await client.at_end()


async def test_an_http_1_0_client_gets_its_answer_unchunked_and_the_end(server: ServerProcess) -> None:
    async with server.connect() as client:
        await client.write(b"GET /first_chunk HTTP/1.0\r\n\r\n")
        status, headers = await client.response_head()
        assert (status, "transfer-encoding" in headers) == (200, False)
        assert await client.reader.read() == b" 0"


async def test_an_idle_connection_is_closed(tight: ServerProcess) -> None:
    async with tight.connect() as client:
        await client.request("/echo")
        assert await asyncio.wait_for(client.at_end(), 2)


async def test_a_client_that_sends_requests_and_reads_no_answer_is_not_answered_without_end(
    server: ServerProcess,
) -> None:
    before = server.rss()
    async with server.connect() as client:
        await client.write(head("/whole?key=first-of-many") * 50)
        await server.recorded("first-of-many")
        for _ in range(30):
            await server.get("/echo")
        assert server.rss() - before < 16_000_000
        sizes = [len((await client.response()).body) for _ in range(50)]
    assert sizes == [2_000_000] * 50


# Uploads


async def test_a_chunked_upload_arrives_whole(server: ServerProcess) -> None:
    chunks = [b"a" * 5, b"b" * 70_000, b"c"]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    async with server.connect() as client:
        await client.write(head("/echo", "Transfer-Encoding: chunked", method="POST") + framed)
        assert (await client.response()).json()["size"] == 70_006
        assert (await client.request("/echo")).status == 200


async def test_a_client_that_waits_for_100_continue_is_told_to_go_on(server: ServerProcess) -> None:
    async with server.connect() as client:
        await client.write(head("/echo", "Expect: 100-continue", method="POST", length=4))
        assert (await client.response_head())[0] == 100
        await client.write(b"data")
        assert (await client.response()).json()["size"] == 4


async def test_the_rest_of_an_upload_answered_early_is_never_a_request(server: ServerProcess) -> None:
    smuggled = head("/await?key=smuggled-record") + head("/echo")
    async with server.connect() as client:
        await client.write(head("/early", method="POST", length=len(smuggled) + 10))
        assert (await client.response()).status == 401
        await client.write(smuggled + b"0123456789" + smuggled)
        assert await client.at_end()


async def test_an_upload_with_a_request_inside_is_one_body(server: ServerProcess) -> None:
    inner = head("/early") * 3
    async with server.connect() as client:
        response = await client.request("/echo", method="POST", body=inner)
        assert response.json()["size"] == len(inner)
        assert (await client.request("/echo")).json()["size"] == 0


async def test_what_follows_a_chunked_upload_answered_early_is_never_a_request(server: ServerProcess) -> None:
    async with server.connect() as client:
        await client.write(head("/early", "Transfer-Encoding: chunked", method="POST") + b"5\r\nhello\r\n")
        response = await client.response()
        assert (response.status, response.headers["connection"]) == (401, "close")
        await client.write(b"0\r\n\r\n" + head("/echo"))
        assert await client.at_end()


async def test_an_upload_that_goes_on_too_long_after_its_answer_is_cut(tight: ServerProcess) -> None:
    async with tight.connect() as client:
        await client.write(head("/early", method="POST", length=1_000_000_000))
        assert (await client.response()).status == 401
        began = time.monotonic()
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(client.write_for_ever(b"x" * 100, pause=0.005), 5)
        assert 0.5 < time.monotonic() - began < 2


async def test_an_upload_that_goes_on_too_far_after_its_answer_is_cut(tight: ServerProcess) -> None:
    async with tight.connect() as client:
        await client.write(head("/early", method="POST", length=1_000_000_000))
        assert (await client.response()).status == 401
        began = time.monotonic()
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(client.write_for_ever(b"x" * 50_000), 5)
        assert time.monotonic() - began < 0.5


async def test_an_upload_goes_on_while_its_response_waits_for_the_client(server: ServerProcess) -> None:
    async with server.connect() as client:
        await client.write(head("/duplex?key=duplex", method="POST", length=3_000_000))
        await client.response_head()
        for _ in range(30):
            await client.write(b"x" * 100_000)
        assert await server.recorded("duplex") == 3_000_000


async def test_an_upload_refused_in_its_last_chunk_is_answered(tight: ServerProcess) -> None:
    async with tight.connect() as client:
        await client.write(head("/ignore_body?key=last-chunk", "Transfer-Encoding: chunked", method="POST"))
        await client.write(b"2ee00\r\n" + b"x" * 0x2EE00 + b"\r\n")
        assert await tight.recorded("last-chunk") == "started"
        await client.write(b"4000\r\n" + b"x" * 0x4000 + b"\r\n0\r\n\r\n")
        assert (await client.response()).json()["error"]["code"] == "upload_overflow"
        assert await client.at_end()
    assert "IndexError" not in tight.log()


async def test_a_malformed_chunk_before_the_answer_is_refused(server: ServerProcess) -> None:
    async with server.connect() as client:
        response = await refused(client, head("/echo", "Transfer-Encoding: chunked", method="POST") + b"zz\r\n")
    assert (response.status, response.json()["error"]["code"]) == (400, "malformed_body")


async def test_a_malformed_chunk_during_the_answer_cuts_it(server: ServerProcess) -> None:
    async with server.connect() as client:
        start = head("/first_chunk", "Transfer-Encoding: chunked", method="POST")
        await client.write(start + b"5\r\nhello\r\n")
        await client.response_head()
        assert await client.chunk() == b"hello"
        await client.write(b"zz\r\n")
        with pytest.raises(ConnectionError):
            await client.reader.read()


# Refusals


async def test_headers_up_to_the_limit_pass(server: ServerProcess) -> None:
    async with server.connect() as client:
        one = f"X-One: {'a' * 30_000}"
        base = len(head("/scope_", one, "X-Two: "))
        response = await client.request("/scope_", one, f"X-Two: {'b' * (65536 - base)}")
        assert response.status == 200
        sizes = {name: len(value) for name, value in response.json()["headers"]}
        assert sizes["x-one"] == 30_000


async def test_many_headers_up_to_the_limit_pass(server: ServerProcess) -> None:
    async with server.connect() as client:
        response = await client.request("/scope_", *(f"X-{number}: {'a' * 120}" for number in range(480)))
        assert len(response.json()["headers"]) == 481


@pytest.mark.parametrize(
    "data",
    [
        head("/echo", f"X-One: {'a' * 70_000}"),
        head("/echo", *(f"X-{number}: {'a' * 1000}" for number in range(70))),
        b"GET /" + b"a" * 100_000,
    ],
)
async def test_headers_over_the_limit_are_refused_by_name(server: ServerProcess, data: bytes) -> None:
    async with server.connect() as client:
        response = await refused(client, data)
    assert (response.status, response.json()["error"]["code"]) == (400, "headers_too_large")
    assert "65536 bytes" in response.json()["error"]["message"]


async def test_more_headers_than_the_parser_takes_are_refused_by_name(server: ServerProcess) -> None:
    async with server.connect() as client:
        response = await refused(client, head("/echo", *(f"X-{number}: a" for number in range(600))))
    assert (response.status, response.json()["error"]["code"]) == (400, "too_many_headers")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET /\xc3\xa9 HTTP/1.1\r\n\r\n", "malformed_request"),
        (b"GET / nonsense HTTP/1.1\r\n\r\n", "malformed_request"),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", "malformed_request"),
        (head("/echo", "no colon"), "invalid_header"),
        (head("/echo", "X A: 1"), "invalid_header"),
        (head("/echo", "X-A: \x0b"), "invalid_header"),
        (head("/echo", "Content-Length: 5", "Content-Length: 6"), "invalid_header"),
        (head("/echo", "Content-Length: x"), "invalid_header"),
        (head("/echo", "Transfer-Encoding: gzip"), "invalid_header"),
        (head("/echo", "Transfer-Encoding: chunked", "Content-Length: 3"), "invalid_header"),
        (head("/echo", "X-A: \x0b", method="POST", length=1000), "invalid_header"),
    ],
)
async def test_what_is_not_http_is_refused_and_what_follows_is_dropped(
    server: ServerProcess, data: bytes, code: str
) -> None:
    async with server.connect() as client:
        response = await refused(client, data + head("/echo"))
    assert (response.status, response.json()["error"]["code"]) == (400, code)


async def test_a_refusal_of_head_has_no_body(server: ServerProcess) -> None:
    async with server.connect() as client:
        await client.write(head("/silent", method="HEAD"))
        status, headers = await client.response_head()
        assert status == 500
        assert int(headers["content-length"]) > 0
        assert await client.at_end()


async def test_no_answer_names_the_software(server: ServerProcess) -> None:
    for path in ("/echo", "/silent", "/early"):
        assert "server" not in (await server.get(path)).headers
