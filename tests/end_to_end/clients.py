"""What the tests say to a gateway, and how they read what it answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.support.processes import GatewayProcess

CODEX = "/backend-api/codex/responses"
V1 = "/v1/responses"
TERMINALS = ("response.completed", "response.failed", "response.incomplete", "error")
LARGEST_MESSAGE = 64 * 1024 * 1024
# On the loopback network all of 127/8 is this machine, so a client's address can be told from the gateway's.
CLIENT_ADDRESS = "127.0.0.77"

# The JSON of the wire is as loose as the protocol is.
Json = dict[str, Any]


def body(content: str = "hi", **members: object) -> Json:
    """A request for a streamed answer that is not stored; `members` override."""
    message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": content}]}
    return {"model": "gpt-5.5", "stream": True, "store": False, "input": [message], **members}


def frame(content: str = "hi", **members: object) -> str:
    """The same as a frame for a WebSocket."""
    return json.dumps({"type": "response.create", **body(content, **members)})


def http_client(gateway: GatewayProcess, **options: Any) -> httpx.AsyncClient:
    """A client with the gateway's key; no proxy of the environment stands between."""
    # Without certificates to load, since all of this is plain HTTP.
    transport = httpx.AsyncHTTPTransport(verify=False, local_address=CLIENT_ADDRESS)
    settings = {"headers": gateway.headers, "base_url": gateway.url, "timeout": 20, **options}
    return httpx.AsyncClient(transport=transport, **settings)


async def post(gateway: GatewayProcess, content: Json | bytes, path: str = CODEX, **headers: str) -> httpx.Response:
    """One request, its answer read to the end."""
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    async with http_client(gateway) as client:
        return await client.post(path, content=raw, headers=headers)


@asynccontextmanager
async def socket(
    gateway: GatewayProcess, path: str = CODEX, headers: Mapping[str, str] | None = None, **options: Any
) -> AsyncIterator[ClientConnection]:
    """A client's WebSocket."""
    settings = {"proxy": None, "compression": None, "max_size": LARGEST_MESSAGE, "ping_interval": None, **options}
    shown = gateway.headers if headers is None else headers
    address = (CLIENT_ADDRESS, 0)
    async with connect(
        gateway.websocket_url + path, additional_headers=shown, local_addr=address, **settings
    ) as opened:
        yield opened


async def read_turn(connection: ClientConnection) -> list[Json]:
    """The frames of one answer, up to its terminal event or error frame."""
    events: list[Json] = []
    while not events or events[-1]["type"] not in TERMINALS:
        events.append(json.loads(await connection.recv()))
    return events


async def until_closed(connection: ClientConnection) -> tuple[list[Json], int | None]:
    """The frames until the gateway closes, and the code it closes with; None when the connection just ends."""
    events: list[Json] = []
    try:
        while True:
            events.append(json.loads(await connection.recv()))
    except ConnectionClosed as closed:
        return events, None if closed.rcvd is None else closed.rcvd.code


async def turn(connection: ClientConnection, text: str) -> Json:
    """Send a frame and return the last event of its answer."""
    await connection.send(text)
    return (await read_turn(connection))[-1]


def data_of(stream: bytes) -> list[bytes]:
    """The `data:` lines of an event stream, as they came."""
    return [line.removeprefix(b"data: ") for line in stream.split(b"\n") if line.startswith(b"data: ")]


def sse(stream: bytes) -> list[Json]:
    """The events of an event stream."""
    return [json.loads(data) for data in data_of(stream)]


class RawHttp:
    """An HTTP client that decides about every byte, and about every byte that it does not read.

    `reader` holds little, so that a client that reads nothing takes nothing.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> bytes:
        """The head of an answer."""
        return await self.reader.readuntil(b"\r\n\r\n")

    async def answer(self) -> tuple[int, Json]:
        """The status and the document of an answer that declares its length."""
        head = await self.head()
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        return int(head.split()[1]), json.loads(await self.reader.readexactly(length))


@asynccontextmanager
async def raw_http(gateway: GatewayProcess) -> AsyncIterator[RawHttp]:
    """A bare connection to the gateway; it is closed, without any farewell, at the end."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", gateway.port, limit=16 * 1024, local_addr=(CLIENT_ADDRESS, 0)
    )
    try:
        yield RawHttp(reader, writer)
    finally:
        writer.transport.abort()


def head(gateway: GatewayProcess, length: int, path: str = CODEX, **headers: str) -> bytes:
    """The head of a request with a body of `length` bytes."""
    fields = {"host": "gateway", **gateway.headers, "content-length": str(length), **headers}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode()


def request(gateway: GatewayProcess, content: Json, path: str = CODEX) -> bytes:
    """A whole request."""
    raw = json.dumps(content).encode()
    return head(gateway, len(raw), path) + raw
