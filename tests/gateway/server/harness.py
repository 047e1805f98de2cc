"""A server in a process of its own, and clients that see every byte."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect

ROOT = Path(__file__).resolve().parents[3]


class ServerProcess:
    """A running `tests.gateway.server.apps`. Close it, or use it as a context manager."""

    def __init__(self, *, port: int = 0, fd: int | None = None, hooks: str = "", **limits: float) -> None:
        options: dict[str, Any] = {"port": port, "hooks": hooks, "limits": limits}
        if fd is not None:
            options["fd"] = fd
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `close`
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.gateway.server.apps", json.dumps(options)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=self._log,
            pass_fds=() if fd is None else (fd,),
        )

    def started(self) -> ServerProcess:
        """Wait until it listens."""
        while not isinstance(line := self.line(), dict):
            pass
        self.port: int = line["port"]
        return self

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def line(self) -> Any:
        """The next thing the program says; raises if it ended instead."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        if not text:
            raise EOFError(self.log())
        return json.loads(text)

    async def says(self) -> Any:
        return await asyncio.to_thread(self.line)

    def log(self) -> str:
        """What the program logged so far."""
        self._log.seek(0)
        return self._log.read().decode()

    def rss(self) -> int:
        """Resident bytes of the process now."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def open_sockets(self) -> int:
        """How many sockets the process has open."""
        folder = Path(f"/proc/{self.process.pid}/fd")
        return sum(os.readlink(entry).startswith("socket:") for entry in folder.iterdir() if entry.is_symlink())

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(10)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()

    @asynccontextmanager
    async def connect(self, receive_buffer: int | None = None) -> AsyncIterator[RawClient]:
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(sock=sock)
        client = RawClient(reader, writer)
        try:
            yield client
        finally:
            client.abort()

    def websocket(self, path: str, **options: Any) -> connect:
        """A client of the `websockets` library that takes messages of any size."""
        return connect(f"ws://127.0.0.1:{self.port}{path}", proxy=None, max_size=None, **options)

    async def get(self, path: str) -> Response:
        async with self.connect() as client:
            return await client.request(path)

    async def recorded(self, key: str) -> Any:
        """What an application recorded under `key`; waits for it."""
        return (await self.get(f"/await?key={key}")).json()


class Response:
    """A response that was read whole."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    def json(self) -> Any:
        return json.loads(self.body)


class RawClient:
    """An HTTP/1.1 connection on which a test writes what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def write_for_ever(self, data: bytes, pause: float = 0) -> None:
        """Write until the server ends the connection, which raises, or the caller gives up."""
        while True:
            await self.write(data)
            await asyncio.sleep(pause)

    async def request(self, path: str, *headers: str, method: str = "GET", body: bytes | None = None) -> Response:
        await self.write(head(path, *headers, method=method, length=None if body is None else len(body)))
        if body is not None:
            await self.write(body)
        return await self.response(method)

    async def response_head(self) -> tuple[int, dict[str, str]]:
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text.rstrip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return int(first.split()[1]), headers

    async def response(self, method: str = "GET") -> Response:
        status, headers = await self.response_head()
        if method == "HEAD":
            return Response(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            return Response(status, headers, await self._chunks())
        if "content-length" in headers:
            return Response(status, headers, await self.reader.readexactly(int(headers["content-length"])))
        return Response(status, headers, await self.reader.read())

    async def _chunks(self) -> bytes:
        parts = []
        while chunk := await self.chunk():
            parts.append(chunk)
        return b"".join(parts)

    async def chunk(self) -> bytes:
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size)
        await self.reader.readexactly(2)
        return data

    async def at_end(self) -> bool:
        """Whether the server closes without another byte."""
        return await self.reader.read(1) == b""

    def abort(self) -> None:
        self.writer.transport.abort()


def head(path: str, *headers: str, method: str = "GET", length: int | None = None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: test", *headers]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
