"""An upstream that answers with given bytes, for what the simulated one is too well-behaved to say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import websockets
from websockets.asyncio.server import ServerConnection

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


@dataclass
class Script:
    """What is answered to every request: the pieces in turn, each in a write of its own.

    With `hold` the connection stays open afterwards until the other side leaves. `requests` holds what came.
    """

    pieces: Sequence[bytes]
    hold: bool = False
    base_url: str = ""
    requests: list[bytes] = field(default_factory=list)


@asynccontextmanager
async def scripted_sse(*pieces: bytes, hold: bool = False) -> AsyncIterator[Script]:
    """An HTTP upstream whose every answer is 200 and `pieces`."""
    script = Script(pieces, hold)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            script.requests.append(await reader.readexactly(length))
            for piece in (HEAD, *script.pieces):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if script.hold:
                await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            # The gateway has left; that is its right.
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        script.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/backend-api/codex"
        yield script


@asynccontextmanager
async def scripted_websocket(*frames: bytes) -> AsyncIterator[Script]:
    """A WebSocket upstream that answers every request with `frames`."""
    script = Script(frames)

    async def serve(connection: ServerConnection) -> None:
        async for message in connection:
            script.requests.append(message.encode() if isinstance(message, str) else message)
            for frame in script.pieces:
                await connection.send(frame, text=True)

    async with websockets.serve(serve, "127.0.0.1", 0, max_size=None) as server:
        script.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/backend-api/codex"
        yield script
