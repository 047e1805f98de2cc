"""Whatever a client sends, it gets a sentence and a code, costs no upstream call, and harms nobody else."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable, Iterator

import httpx
import pytest
from backports import zstd
from websockets.exceptions import InvalidStatus

from tests.end_to_end.clients import (
    CLIENT_ADDRESS,
    CODEX,
    TERMINALS,
    V1,
    body,
    frame,
    head,
    http_client,
    post,
    raw_http,
    read_turn,
    request,
    socket,
    sse,
    turn,
    until_closed,
)
from tests.support.processes import GatewayProcess, Installation, SimulatorProcess

pytestmark = pytest.mark.slow

LIMIT = 1024 * 1024
SECRET = "the-client-said-this-in-confidence"


@pytest.fixture(scope="module")
def gateway(new_installation: Callable[[], Installation]) -> Iterator[GatewayProcess]:
    yield from new_installation().serve(GATEWAY_MAX_BODY_BYTES=str(LIMIT))


@pytest.fixture(autouse=True)
async def unharmed(gateway: GatewayProcess, upstream: SimulatorProcess):
    """After each test: what was bad reached no upstream, a good turn works, and the output tells no secret."""
    yield
    seen = upstream.observed()
    assert not seen.requests
    assert not seen.sockets
    await assert_unharmed(gateway)


async def assert_unharmed(gateway: GatewayProcess) -> None:
    answer = await post(gateway, body())
    assert sse(answer.content)[-1]["type"] == "response.completed"
    async with http_client(gateway) as client:
        assert (await client.get("/healthz")).status_code == 200
    output = gateway.output()
    for secret in (gateway.key, SECRET, CLIENT_ADDRESS, "Traceback"):
        assert secret not in output


def error_of(answer: httpx.Response) -> tuple[int, str]:
    error = answer.json()["error"]
    assert error["message"].endswith(".")
    assert SECRET not in error["message"]
    return answer.status_code, error["code"]


@pytest.mark.parametrize("path", [CODEX, V1])
@pytest.mark.parametrize(
    "content",
    [f'{{"model": "{SECRET}", "input": '.encode(), b"", b"[]", b'{"model": 5}', b'{"model": "\xff"}', b"[" * 100_000],
    ids=["cut short", "empty", "an array", "a number for a string", "not UTF-8", "nested without end"],
)
async def test_a_body_that_is_no_request_is_400_and_says_why(gateway: GatewayProcess, content: bytes, path: str):
    status, code = error_of(await post(gateway, content, path))
    assert status == 400
    assert code in ("invalid_json", "invalid_body")


@pytest.mark.parametrize(
    ("encoding", "code"),
    [
        ("br", "unsupported_content_encoding"),
        ("gzip, gzip, gzip, gzip, gzip", "unsupported_content_encoding"),
        ("gzip", "invalid_content_encoding"),
        ("zstd", "invalid_content_encoding"),
        ("deflate", "invalid_content_encoding"),
    ],
)
async def test_a_content_encoding_that_is_unknown_or_not_true_is_400(gateway: GatewayProcess, encoding: str, code: str):
    assert error_of(await post(gateway, body(SECRET), **{"content-encoding": encoding})) == (400, code)


ZEROS = bytes(10_000_000)
BOMBS = {
    "gzip": gzip.compress(ZEROS),
    "gzip, gzip": gzip.compress(gzip.compress(ZEROS)),
    "zstd": zstd.compress(ZEROS),
    "zstd, gzip": gzip.compress(zstd.compress(ZEROS)),
}


@pytest.mark.parametrize("encoding", BOMBS)
async def test_a_body_that_unfolds_beyond_the_limit_is_400_and_takes_no_memory(gateway: GatewayProcess, encoding: str):
    before = gateway.rss()
    gateway.reset_peak()
    answer = await post(gateway, BOMBS[encoding], **{"content-encoding": encoding})
    assert error_of(answer) == (400, "body_too_large")
    assert gateway.peak_rss() - before < 8 * LIMIT


async def test_a_body_declared_too_large_is_answered_before_it_is_sent(gateway: GatewayProcess):
    async with raw_http(gateway) as client, asyncio.timeout(5):
        await client.send(head(gateway, LIMIT + 1))
        status, document = await client.answer()
    assert status == 400
    assert document["error"]["code"] == "body_too_large"


async def test_a_body_of_unknown_length_is_cut_at_the_limit(gateway: GatewayProcess):
    async def chunks():
        for _ in range(20):
            yield b" " * (LIMIT // 10)

    async with http_client(gateway) as client:
        answer = await client.post(CODEX, content=chunks())
    assert error_of(answer) == (400, "body_too_large")


@pytest.mark.parametrize(
    "headers", [{"x-large": "x" * 70_000}, {f"x-{number}": "x" * 1000 for number in range(70)}], ids=["one", "many"]
)
async def test_headers_over_64_kib_are_400(gateway: GatewayProcess, headers: dict[str, str]):
    assert error_of(await post(gateway, body(), **headers)) == (400, "headers_too_large")


@pytest.mark.parametrize("shown", ["", "Bearer", "Bearer pm_0123456789_wrong", f"Bearer {SECRET}", "Basic cG06cG0="])
@pytest.mark.parametrize("path", [CODEX, V1])
async def test_without_a_valid_key_a_request_is_401(gateway: GatewayProcess, path: str, shown: str):
    status, code = error_of(await post(gateway, body(), path, authorization=shown))
    assert (status, code) == (401, "invalid_api_key")


@pytest.mark.parametrize("path", [CODEX, V1])
async def test_a_key_with_another_secret_part_is_401(gateway: GatewayProcess, path: str):
    wrong = gateway.key[:-4] + "AAAA"
    answer = await post(gateway, body(), path, authorization=f"Bearer {wrong}")
    assert error_of(answer) == (401, "invalid_api_key")


@pytest.mark.parametrize("shown", [{}, {"authorization": f"Bearer {SECRET}"}], ids=["no key", "a wrong key"])
@pytest.mark.parametrize("path", [CODEX, V1])
async def test_without_a_valid_key_a_handshake_is_401_with_a_body(
    gateway: GatewayProcess, path: str, shown: dict[str, str]
):
    with pytest.raises(InvalidStatus) as refused:
        async with socket(gateway, path, headers=shown):
            pass
    response = refused.value.response
    assert response.status_code == 401
    assert json.loads(response.body)["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    "path", ["/v1/chat", "/backend-api/codex", "/v1/responses/", f"/{SECRET}", "/%2e%2e/etc/passwd"]
)
async def test_an_unknown_path_is_a_json_404(gateway: GatewayProcess, path: str):
    async with http_client(gateway) as client:
        for method in ("GET", "POST"):
            answer = await client.request(method, path)
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "not_found"


async def test_a_handshake_on_an_unknown_path_is_refused(gateway: GatewayProcess):
    with pytest.raises(InvalidStatus) as refused:
        async with socket(gateway, "/v1/elsewhere"):
            pass
    assert refused.value.response.status_code in (403, 404)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"{}", "binary_frame"),
        ('{"type": "response.cancel"}', "unknown_frame_type"),
        ("{}", "unknown_frame_type"),
        (f'{{"type": "{SECRET}", ', "invalid_json"),
        ("[]", "invalid_body"),
        ("", "invalid_json"),
    ],
    ids=["binary", "unknown type", "no type", "no JSON", "an array", "empty"],
)
async def test_a_frame_that_is_no_request_is_an_error_frame_and_the_socket_stays(
    gateway: GatewayProcess, upstream: SimulatorProcess, sent: str | bytes, code: str
):
    async with socket(gateway) as connection, asyncio.timeout(5):
        await connection.send(sent)
        (error,) = await read_turn(connection)
        assert (error["type"], error["status"], error["error"]["code"]) == ("error", 400, code)
        assert not upstream.observed().sockets
        good = await turn(connection, frame())
    assert good["type"] == "response.completed"
    upstream.until(lambda seen: not seen.open_sockets)
    upstream.forget()


async def test_more_than_eight_waiting_frames_end_the_socket(gateway: GatewayProcess, upstream: SimulatorProcess):
    upstream.add_fault("silent")
    async with socket(gateway) as connection, asyncio.timeout(5):
        for _ in range(12):
            await connection.send(frame(SECRET))
        events, code = await until_closed(connection)
    assert code == 1008
    errors = [event for event in events if event["type"] in TERMINALS]
    assert [error["error"]["code"] for error in errors] == ["too_many_frames"]
    upstream.until(lambda seen: not seen.running)
    upstream.clear_faults()
    upstream.forget()


async def test_the_limit_on_requests_is_none_on_answers(gateway: GatewayProcess, upstream: SimulatorProcess):
    upstream.add_fault(f"big_event:{2 * LIMIT}#2")
    answer = await post(gateway, body())
    assert sse(answer.content)[-1]["type"] == "response.completed"
    async with socket(gateway) as connection:
        assert (await turn(connection, frame()))["type"] == "response.completed"
    upstream.until(lambda seen: not seen.open_sockets)
    upstream.forget()


async def test_a_frame_over_the_limit_is_an_error_frame(gateway: GatewayProcess):
    async with socket(gateway) as connection, asyncio.timeout(5):
        await connection.send(frame(SECRET * (LIMIT // len(SECRET))))
        (error,) = await read_turn(connection)
    assert (error["status"], error["error"]["code"]) == (400, "body_too_large")


async def test_the_output_tells_neither_key_nor_body_nor_address(gateway: GatewayProcess, upstream: SimulatorProcess):
    async with http_client(gateway) as client:
        for content in (json.dumps(body(SECRET)).encode(), SECRET.encode()):
            await client.post(CODEX, content=content)
    async with socket(gateway) as connection:
        await turn(connection, frame(SECRET))
        await turn(connection, SECRET)
    upstream.until(lambda seen: not seen.open_sockets)
    upstream.forget()


async def test_bytes_that_are_not_http_are_answered_and_cut(gateway: GatewayProcess):
    async with raw_http(gateway) as client, asyncio.timeout(5):
        await client.send(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")
        assert b" 400 " in await client.reader.read()


async def test_a_client_that_leaves_in_the_middle_of_a_request_harms_nobody(
    gateway: GatewayProcess, upstream: SimulatorProcess
):
    whole = request(gateway, body(SECRET))
    for end in (1, 20, len(whole) - 200, len(whole) - 1):
        async with raw_http(gateway) as client:
            await client.send(whole[:end])
    upstream.until(lambda seen: not seen.running)
