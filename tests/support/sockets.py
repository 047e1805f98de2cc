"""Raw clients that leave when it hurts, and what the kernel says about connections."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import TracebackType

from tests.support.inprocess import World
from tests.support.records import HELLO

ESTABLISHED = "01"


def connections_to(port: int) -> int:
    """Established TCP connections from this machine to a port of its own, as the kernel counts them."""
    lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    columns = [line.split() for line in lines]
    return sum(1 for column in columns if column[3] == ESTABLISHED and int(column[2].partition(":")[2], 16) == port)


class RawClient:
    """One HTTP request on a socket of its own; leaving the context cuts the socket with a reset."""

    def __init__(self, w: World, body: bytes | None = None, path: str = "/backend-api/codex/responses") -> None:
        self._world = w
        self.body = json.dumps(HELLO).encode() if body is None else body
        self._path = path

    async def __aenter__(self) -> RawClient:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._world.port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.transport.abort()

    def send_head(self) -> None:
        self.writer.write(
            f"POST {self._path} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {self._world.key.text}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(self.body)}\r\n\r\n".encode()
        )

    def send(self) -> None:
        """Send the whole request."""
        self.send_head()
        self.writer.write(self.body)

    async def status(self) -> int:
        """Read the head of the answer; its status."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        return int(head.split()[1])

    async def read_until(self, text: bytes) -> None:
        """Read until `text` has come."""
        seen = b""
        while text not in seen:
            chunk = await self.reader.read(65536)
            assert chunk, f"the answer ended without {text!r}: {seen!r}"
            seen += chunk
