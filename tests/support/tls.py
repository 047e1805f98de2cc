"""TLS in front of a plain server, as a balancer puts it there, with a note of what clients asked for."""

from __future__ import annotations

import asyncio
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

REQUEST_LINE = re.compile(rb"^(GET|POST|PUT|DELETE|HEAD) (\S+) HTTP/1\.1\r$", re.MULTILINE)


@dataclass
class Front:
    """A running front. `asked` are methods and paths, in order, without what follows a question mark."""

    port: int = 0
    asked: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"


@contextmanager
def tls_front(port: int, certificate: Path) -> Iterator[Front]:
    """Carry TLS connections to `port` of this machine. It runs in a thread, for tests that wait for other programs."""
    front, loop = Front(), asyncio.new_event_loop()
    ready, over = threading.Event(), asyncio.Event()

    def run() -> None:
        loop.run_until_complete(_serve(front, port, certificate, ready, over))
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(10)
        yield front
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10)


async def _serve(front: Front, port: int, certificate: Path, ready: threading.Event, over: asyncio.Event) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(_carry(front, port, reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    front.port = server.sockets[0].getsockname()[1]
    ready.set()
    await over.wait()
    server.close()
    for task in tuple(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _carry(front: Front, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)

    async def pump(source: asyncio.StreamReader, drain: asyncio.StreamWriter, noted: bool) -> None:
        try:
            while data := await source.read(65536):
                if noted:
                    found = REQUEST_LINE.findall(data)
                    front.asked += [f"{method.decode()} {path.decode().partition('?')[0]}" for method, path in found]
                drain.write(data)
                await drain.drain()
        except (OSError, ssl.SSLError):
            pass  # one side is gone; the other is told by the close
        finally:
            drain.close()

    try:
        await asyncio.gather(pump(reader, far_writer, True), pump(far_reader, writer, False))
    finally:
        far_writer.close()
        writer.transport.abort()
