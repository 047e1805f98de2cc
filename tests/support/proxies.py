"""Small real proxies: HTTP with CONNECT, plain or with TLS towards the client, and SOCKS 5."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

USER, PASSWORD = "ada", "p@ss:word"
IN_URL = "ada:p%40ss%3Aword"


@dataclass
class Proxy:
    """A running proxy. `fault` is what it does instead of connecting: `refuse`, `hang_up` or `silence`.

    `asked` are the destinations that clients have named, as they named them; `open` counts their connections.
    """

    scheme: str
    fault: str | None = None
    with_password: bool = True
    asked: list[str] = field(default_factory=list)
    port: int = 0
    open: int = 0

    @property
    def url(self) -> str:
        return f"{self.scheme}://{IN_URL + '@' if self.with_password else ''}127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            if self.fault == "silence":
                await reader.read()
            elif self.fault != "hang_up":
                await (self._socks if self.scheme == "socks5" else self._http)(reader, writer)
        except (OSError, asyncio.IncompleteReadError, ssl.SSLError):
            pass  # the client has left
        finally:
            self.open -= 1
            await _closed(writer)

    async def _http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        request, *lines = head.split("\r\n")
        method, destination, _ = request.split(" ")
        assert method == "CONNECT", "a proxy is given nothing that it could read"
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        wanted = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self.with_password and headers.get("proxy-authorization") != wanted:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
            return
        self.asked.append(destination)
        if self.fault == "refuse":
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n")
            return
        host, _, port = destination.rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await _both_ways(reader, writer, far_reader, far_writer)

    async def _socks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, methods = await reader.readexactly(2)
        offered = await reader.readexactly(methods)
        writer.write(b"\x05\x02" if self.with_password else b"\x05\x00")
        if self.with_password:
            assert 2 in offered
            user = await reader.readexactly((await reader.readexactly(2))[1])
            password = await reader.readexactly((await reader.readexactly(1))[0])
            good = (user.decode(), password.decode()) == (USER, PASSWORD)
            writer.write(b"\x01\x00" if good else b"\x01\x01")
            if not good:
                return
        *_, kind = await reader.readexactly(4)
        if kind == 3:
            host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
        else:
            host = str(ip_address(await reader.readexactly(4 if kind == 1 else 16)))
        port = int.from_bytes(await reader.readexactly(2), "big")
        self.asked.append(f"{host}:{port}")
        if self.fault == "refuse":
            writer.write(b"\x05\x05\x00\x01" + bytes(6))
            return
        far_reader, far_writer = await asyncio.open_connection(host, port)
        writer.write(b"\x05\x00\x00\x01" + bytes(6))
        await _both_ways(reader, writer, far_reader, far_writer)


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        async with asyncio.timeout(1):
            await writer.wait_closed()
    except (OSError, ssl.SSLError):
        writer.transport.abort()


async def _both_ways(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    far_reader: asyncio.StreamReader,
    far_writer: asyncio.StreamWriter,
) -> None:
    async def pump(source: asyncio.StreamReader, drain: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                drain.write(data)
                await drain.drain()
        except (OSError, ssl.SSLError):
            pass  # one side is gone; the other is told by the close
        await _closed(drain)

    try:
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
    finally:
        far_writer.close()


@asynccontextmanager
async def proxy(scheme: str, certificate: Path | None = None, **options: object) -> AsyncIterator[Proxy]:
    """A proxy on a free port; `certificate` is needed for `https`."""
    running = Proxy(scheme, **options)  # type: ignore[arg-type]
    context = None
    if scheme == "https":
        assert certificate is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(running.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    running.port = server.sockets[0].getsockname()[1]
    try:
        yield running
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def certificate_for_this_machine(folder: Path) -> Path:
    """A file with a key and a certificate of its own for 127.0.0.1; name it in SSL_CERT_FILE to have it trusted."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = folder / "certificate.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return file
