"""A relay without any feature, written plainly, on the gateway's own server: what relaying costs at the least.

Run it as `python -m tests.bench.bare --upstream URL [--port N]`. A request is posted to the upstream and its answer
passed on chunk by chunk; each client WebSocket gets one of its own to the upstream. It checks no key, chooses nothing,
counts nothing, reads no event and writes nothing down. Keep it as it is: the figures of the gateway are ratios to it.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import httpx
from asgiref.typing import ASGI3Application
from websockets.asyncio.client import ClientConnection, connect

from gateway.server import GatewayServer, ServerLimits, TcpEndpoint

# ASGI messages are dictionaries whose values depend on their type.
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class BareRelay:
    """The application. Await `start` in the server's event loop first, and `stop` at the end."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._client: httpx.AsyncClient

    async def start(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = httpx.AsyncClient(limits=limits, timeout=300, trust_env=False)

    async def stop(self) -> None:
        await self._client.aclose()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._relay_websocket(receive, send)
        else:
            await self._relay_http(receive, send)

    async def _relay_http(self, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        async with self._client.stream("POST", self._upstream, content=body, headers=headers) as response:
            kept = [(b"content-type", response.headers["content-type"].encode())]
            await send({"type": "http.response.start", "status": response.status_code, "headers": kept})
            async for chunk in response.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body"})

    async def _relay_websocket(self, receive: Receive, send: Send) -> None:
        await receive()
        url = self._upstream.replace("http", "ws", 1)
        async with connect(url, proxy=None, compression=None, max_size=None) as upstream:
            await send({"type": "websocket.accept"})
            from_client = asyncio.ensure_future(relay_requests(receive, upstream))
            try:
                async for text in upstream:
                    await send({"type": "websocket.send", "text": text})
            except OSError:
                # The client has left.
                pass
            finally:
                from_client.cancel()


async def read_body(receive: Receive) -> bytes:
    """The whole body of a request."""
    chunks = []
    while True:
        message = await receive()
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)


async def relay_requests(receive: Receive, upstream: ClientConnection) -> None:
    """Pass the client's frames on, and close the upstream's socket when the client leaves."""
    while (message := await receive())["type"] == "websocket.receive":
        await upstream.send(message["text"])
    await upstream.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upstream", required=True, metavar="URL", help="where requests are posted to")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (%(default)s)")
    options = parser.parse_args()
    relay = BareRelay(options.upstream)
    server = GatewayServer(
        cast(ASGI3Application, relay),
        [TcpEndpoint("127.0.0.1", options.port)],
        limits=ServerLimits(),
        on_startup=relay.start,
        on_shutdown=relay.stop,
        ready=lambda addresses: print(f"ready on http://127.0.0.1:{addresses[0][1]}", flush=True),
    )
    server.run()


if __name__ == "__main__":
    main()
