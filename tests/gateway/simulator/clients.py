"""Clients for the tests of the simulator: httpx for SSE, `websockets` for WebSockets, a bare socket for the rest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx
from websockets.asyncio.client import ClientConnection, connect

from gateway.simulator import Simulator

Event = dict[str, object]
ADA = "sim-ada"
TERMINALS = ("response.completed", "response.failed", "response.incomplete", "error")


def request(**members: object) -> Event:
    """A request for a streamed answer that is not stored; `members` override."""
    return {"model": "gpt-5.5", "input": "hi", "stream": True, "store": False} | members


def message(content: str, role: str = "user") -> Event:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": content}]}


async def post(
    upstream: Simulator,
    body: Mapping[str, object] | bytes,
    *,
    token: str = ADA,
    path: str = "/v1",
    headers: Mapping[str, str] | None = None,
) -> httpx.Response:
    """One request over HTTP, read to its end."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with http(token, headers) as client:
        return await client.post(f"{upstream.base_url(path)}/responses", content=content)


def http(token: str = ADA, headers: Mapping[str, str] | None = None) -> httpx.AsyncClient:
    # Nothing here speaks TLS, and setting it up is what would take most of a test's time.
    return httpx.AsyncClient(
        headers={"authorization": f"Bearer {token}", **(headers or {})}, trust_env=False, verify=False, timeout=5
    )


def sse(text: str) -> list[Event]:
    """The events of a whole stream; every one has the lines `event:` and `data:` with the same type."""
    events = []
    for block in text.split("\n\n"):
        if block:
            head, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert head == f"event: {events[-1]['type']}"
    return events


@asynccontextmanager
async def socket(
    upstream: Simulator, *, token: str = ADA, path: str = "/v1", headers: Mapping[str, str] | None = None
) -> AsyncIterator[ClientConnection]:
    """An open WebSocket that does not ping by itself."""
    async with connect(
        upstream.base_url(path).replace("http", "ws", 1) + "/responses",
        additional_headers={"authorization": f"Bearer {token}", **(headers or {})},
        compression=None,
        proxy=None,
        max_size=None,
        ping_interval=None,
        open_timeout=5,
        close_timeout=1,
    ) as connection:
        yield connection


@asynccontextmanager
async def raw_socket(upstream: Simulator) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """An open WebSocket without anything that keeps its rules: what is sent and when it ends is up to the test."""
    reader, writer = await asyncio.open_connection("127.0.0.1", upstream.port)
    writer.write(
        b"GET /v1/responses HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        b"authorization: Bearer sim-ada\r\n\r\n"
    )
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    yield reader, writer
    writer.close()


async def create(connection: ClientConnection, **members: object) -> None:
    body = request(**members)
    del body["stream"]
    await connection.send(json.dumps({"type": "response.create", **body}))


async def receive(connection: ClientConnection) -> Event:
    event = json.loads(await connection.recv())
    assert isinstance(event, dict)
    return event


async def rest(connection: ClientConnection) -> list[Event]:
    """The events up to the terminal one or an error frame."""
    events = [await receive(connection)]
    while events[-1]["type"] not in TERMINALS:
        events.append(await receive(connection))
    return events


async def turn(connection: ClientConnection, **members: object) -> list[Event]:
    await create(connection, **members)
    return await rest(connection)


def response_of(events: list[Event]) -> dict[str, object]:
    """The response object of the terminal event."""
    response = events[-1]["response"]
    assert isinstance(response, dict)
    return response


def output_text(events: list[Event]) -> str:
    return "".join(str(event["delta"]) for event in events if event["type"] == "response.output_text.delta")


def error_of(answer: httpx.Response | list[Event]) -> dict[str, object]:
    """The error object of an HTTP answer or of the error frame that ends a turn."""
    error = answer.json()["error"] if isinstance(answer, httpx.Response) else answer[-1]["error"]
    assert isinstance(error, dict)
    return error


def types(events: list[Event]) -> list[str]:
    return [str(event["type"]) for event in events]
