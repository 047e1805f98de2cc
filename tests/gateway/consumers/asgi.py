"""A client that speaks ASGI to an application, so that a test decides what it takes and when it leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.consumers.base import App
from gateway.consumers.routes import traffic_app
from gateway.consumers.simple import document_app, not_found
from gateway.keys import KeySnapshot, NewKey, new_key
from gateway.runtime import Network, Runtime
from gateway.simulator import SimulatedAccount, Simulator
from tests.support.inprocess import account
from tests.support.memory import MemoryStore
from tests.support.network import real_network

CODEX = "/backend-api/codex/responses"
V1 = "/v1/responses"


class Server:
    """A server for one client, which takes nothing while it is `full`; `size` is what was not handed to the kernel."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.free = asyncio.Event()
        self.free.set()
        self.size = 0
        self.left = False

    async def send(self, message: dict[str, Any]) -> None:
        if self.left:
            raise OSError("the client has left")
        self.sent.append(message)
        await self.free.wait()

    def write(self, pieces: Sequence[bytes]) -> bool:
        """The server's way around `send`, as far as it can be taken: these become one piece, and frames stay apart."""
        if self.left or not self.free.is_set():
            return False
        if self.sent[0]["type"] == "http.response.start":
            self.sent.append({"type": "http.response.body", "body": b"".join(pieces), "more_body": True})
        else:
            self.sent.extend({"type": "websocket.send", "text": piece.decode()} for piece in pieces)
        return True

    def buffered(self) -> int:
        return self.size

    def fill(self) -> None:
        """From now on every send waits, until `free` is set."""
        self.free.clear()

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode("latin-1") for name, value in self.sent[0]["headers"]}

    @property
    def pieces(self) -> list[bytes]:
        return [message["body"] for message in self.sent if message["type"] == "http.response.body"]

    @property
    def complete(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is False


class Client:
    """One connection to an application. With `takes` cleared every send waits, as for a client that reads nothing."""

    def __init__(self, app: App, scope: dict[str, Any]) -> None:
        self.sent: list[dict[str, Any]] = []
        self.takes = asyncio.Event()
        self.takes.set()
        self.left = False
        self._changed = asyncio.Event()
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.task = asyncio.ensure_future(app(scope, self._inbox.get, self._send))
        self.task.add_done_callback(lambda _: self._changed.set())

    async def _send(self, message: dict[str, Any]) -> None:
        if self.left:
            raise OSError("the client has left")
        self.sent.append(message)
        self._changed.set()
        await self.takes.wait()

    def say(self, message: dict[str, Any]) -> None:
        self._inbox.put_nowait(message)

    def leave(self) -> None:
        """The connection is gone."""
        self.left = True
        kind = "websocket" if any("websocket" in message["type"] for message in self.sent) else "http"
        self.say({"type": f"{kind}.disconnect", "code": 1006})

    async def until(self, done: Any) -> None:
        """Wait until `done()` holds; raises `AssertionError` with what was sent when the application ends before."""
        async with asyncio.timeout(5):
            while not done():
                assert not self.task.done(), self.sent
                self._changed.clear()
                await self._changed.wait()

    async def ended(self) -> None:
        """Wait for the application to return; raises what it raised."""
        async with asyncio.timeout(5):
            await self.task


class HttpClient(Client):
    """One request."""

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode("latin-1") for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent if message["type"] == "http.response.body")

    @property
    def complete(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is False

    def json(self) -> Any:
        return json.loads(self.body)


class SocketClient(Client):
    """One WebSocket."""

    @property
    def frames(self) -> list[dict[str, Any]]:
        return [json.loads(message["text"]) for message in self.sent if message["type"] == "websocket.send"]

    @property
    def closes(self) -> list[int]:
        return [message["code"] for message in self.sent if message["type"] == "websocket.close"]

    async def frame(self, frame: str | bytes | Mapping[str, object]) -> None:
        """Send a frame and let the application take it in."""
        if isinstance(frame, bytes):
            self.say({"type": "websocket.receive", "bytes": frame, "text": None})
        else:
            text = frame if isinstance(frame, str) else json.dumps(frame)
            self.say({"type": "websocket.receive", "text": text, "bytes": None})
        await asyncio.sleep(0)

    async def has(self, event_type: str, times: int = 1) -> None:
        """Wait until so many frames of a type have come."""
        await self.until(lambda: [each["type"] for each in self.frames].count(event_type) >= times)


@dataclass
class Edge:
    """The downstream edge of a gateway whose accounts are at a simulated upstream."""

    app: App
    runtime: Runtime
    upstream: Simulator
    store: MemoryStore
    key: NewKey

    def scope(self, kind: str, path: str, method: str = "POST", **headers: str) -> dict[str, Any]:
        shown = {"authorization": f"Bearer {self.key.text}", **headers}
        pairs = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in shown.items()]
        return {"type": kind, "method": method, "path": path, "query_string": b"", "headers": pairs, "extensions": {}}

    def request(
        self, path: str = CODEX, content: object = None, method: str = "POST", *, query: bytes = b"", **headers: str
    ) -> HttpClient:
        """A request; without content its body is still to come."""
        client = HttpClient(self.app, {**self.scope("http", path, method, **headers), "query_string": query})
        if content is not None:
            raw = content if isinstance(content, bytes) else json.dumps(content).encode()
            client.say({"type": "http.request", "body": raw, "more_body": False})
        elif method != "POST":
            client.say({"type": "http.request", "body": b"", "more_body": False})
        return client

    async def answer(self, *arguments: Any, **options: Any) -> HttpClient:
        """A request whose answer is complete."""
        client = self.request(*arguments, **options)
        await client.ended()
        return client

    async def socket(
        self, path: str = CODEX, extensions: Mapping[str, object] | None = None, **headers: str
    ) -> SocketClient:
        """A WebSocket that was accepted or denied."""
        scope = {**self.scope("websocket", path, **headers), "extensions": dict(extensions or {})}
        client = SocketClient(self.app, scope)
        client.say({"type": "websocket.connect"})
        await client.until(lambda: client.sent)
        return client

    async def settled(self) -> list[dict[str, Any]]:
        """Wait until every turn is settled and written; the ledger."""
        async with asyncio.timeout(5):
            await self.runtime.permits.all_back()
            while self.runtime.ledger.unwritten or any(not turn["outcome"] for turn in self.store.turns.values()):
                await asyncio.sleep(0.002)
        return sorted(self.store.turns.values(), key=lambda turn: turn["received_at"])


@asynccontextmanager
async def edge(
    *names: str,
    tunables: Tunables | None = None,
    faults: tuple[str, ...] = (),
    clock: Clock | None = None,
    network: Network | None = None,
    **changes: Any,
) -> AsyncIterator[Edge]:
    """An edge with an account per name ("ada" if none is given); `changes` apply to each account."""
    names = names or ("ada",)
    async with Simulator(accounts={f"sim-{name}": SimulatedAccount(name) for name in names}, faults=faults) as upstream:
        key = new_key()
        store = MemoryStore(keys=[KeySnapshot(1, "tests", key.lookup, key.digest)])
        for number, name in enumerate(names, 1):
            store.accounts[number] = account(number, name, upstream.base_url("/backend-api/codex"), **changes)
        chosen, clock = tunables or Tunables(close_timeout=0.5, drain_timeout=2), clock or Clock()
        runtime = Runtime(chosen, store, clock, network or real_network(chosen, clock))
        await runtime.start()
        try:
            app = traffic_app(lambda: runtime.gate, document_app(not_found))
            yield Edge(app, runtime, upstream, store, key)
        finally:
            await runtime.drain()
            await runtime.stop()


def events(stream: bytes) -> list[dict[str, Any]]:
    """The events of an event stream."""
    return [json.loads(line[6:]) for line in stream.split(b"\n") if line.startswith(b"data: ")]


def body(content: str = "hi", **members: object) -> dict[str, Any]:
    """A request for a streamed answer that is not stored."""
    message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": content}]}
    return {"model": "gpt-5.5", "stream": True, "store": False, "input": [message], **members}


def frame(content: str = "hi", **members: object) -> dict[str, Any]:
    """The same as a frame."""
    return {"type": "response.create", **body(content, **members)}
