"""A gateway inside the test's own event loop, on a real port, over the store's twin in memory."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import uvicorn
import websockets
from websockets.asyncio.client import ClientConnection

from accounts.credentials import OpenAICredentials
from accounts.registry import AccountSnapshot
from accounts.states import Kind, State, Transport
from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.consumers.routes import traffic_app
from gateway.consumers.simple import document_app, not_found
from gateway.forwarding.envelope import signing_keys
from gateway.keys import KeySnapshot, NewKey, new_key
from gateway.runtime import Runtime
from gateway.simulator import SimulatedAccount, Simulator
from tests.support.memory import MemoryStore
from tests.support.network import ScriptedRefresher, real_network

SIGNING_KEYS = signing_keys(["a secret that all replicas of a test share"])


def account(number: int, name: str, base_url: str, **changes: Any) -> AccountSnapshot:
    """An account as the registry holds it; its token is `sim-<name>`."""
    snapshot = AccountSnapshot(
        id=number,
        name=name,
        kind=Kind.CODEX,
        base_url=base_url,
        transport=Transport.AUTO,
        priority=number,
        state=State.ACTIVE,
        state_reason="",
        state_until=None,
        streams=8,
        credentials=OpenAICredentials(f"sim-{name}"),
        account_id="",
        revision=1,
    )
    if "transport" in changes:
        changes["transport"] = Transport(changes["transport"])
    return replace(snapshot, **changes)


@dataclass
class World:
    """A simulated upstream with accounts, a gateway in front of it, and the client's way in."""

    upstream: Simulator
    runtime: Runtime
    store: MemoryStore
    port: int
    key: NewKey
    client: httpx.AsyncClient
    refresher: ScriptedRefresher
    sockets: list[ClientConnection] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def post(
        self, body: dict[str, Any], path: str = "/backend-api/codex/responses", **headers: str
    ) -> httpx.Response:
        """Post a turn and read its whole answer."""
        return await self.client.post(self.url + path, json=body, headers=headers)

    async def websocket(self, path: str = "/backend-api/codex/responses") -> ClientConnection:
        """Open a client WebSocket; it is closed with the world."""
        connection = await websockets.connect(
            f"ws://127.0.0.1:{self.port}{path}",
            additional_headers={"authorization": f"Bearer {self.key.text}"},
            proxy=None,
            max_size=64 * 1024 * 1024,
        )
        self.sockets.append(connection)
        return connection

    def turns(self) -> list[dict[str, Any]]:
        """The ledger, oldest first."""
        return sorted(self.store.turns.values(), key=lambda turn: turn["received_at"])

    async def settled(self) -> list[dict[str, Any]]:
        """Wait until every turn is settled and written; the ledger."""
        async with asyncio.timeout(10):
            await self.runtime.permits.all_back()
            while self.runtime.ledger.unwritten or any(not turn["outcome"] for turn in self.store.turns.values()):
                await asyncio.sleep(0.005)
        return self.turns()


@asynccontextmanager
async def world(
    *names: str,
    tunables: Tunables | None = None,
    faults: tuple[str, ...] = (),
    clock: Clock | None = None,
    **changes: Any,
) -> AsyncIterator[World]:
    """A world with an account per name ("ada" if none is given); `changes` apply to each account."""
    names = names or ("ada",)
    simulated = {f"sim-{name}": SimulatedAccount(name) for name in names}
    async with Simulator(accounts=simulated, faults=faults) as upstream:
        key = new_key()
        store = MemoryStore(keys=[KeySnapshot(1, "tests", key.lookup, key.digest)])
        changes.setdefault("base_url", upstream.base_url("/backend-api/codex"))
        for number, name in enumerate(names, 1):
            store.accounts[number] = account(number, name, **changes)
        refresher = ScriptedRefresher()
        async with running(store, tunables or Tunables(), clock, refresher) as (runtime, port):
            headers = {"authorization": f"Bearer {key.text}"}
            async with httpx.AsyncClient(headers=headers, trust_env=False, timeout=30) as client:
                made = World(upstream, runtime, store, port, key, client, refresher)
                try:
                    yield made
                finally:
                    await asyncio.gather(*(connection.close() for connection in made.sockets))


@asynccontextmanager
async def running(
    store: MemoryStore, tunables: Tunables, clock: Clock | None = None, refresher: ScriptedRefresher | None = None
) -> AsyncIterator[tuple[Runtime, int]]:
    """Serve the traffic app on a free port, with uvicorn: the app leans on no server of its own."""
    clock = clock or Clock()
    network = real_network(tunables, clock, refresher)
    runtime = Runtime(tunables, store, clock, network, signing_keys=SIGNING_KEYS)
    app = traffic_app(lambda: runtime.gate, document_app(not_found))
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_level="critical",
        ws="websockets-sansio",
        ws_max_size=64 * 1024 * 1024,
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    port = listener.getsockname()[1]
    await runtime.start(f"http://127.0.0.1:{port}")
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        while not server.started:
            await asyncio.sleep(0.005)
        yield runtime, port
    finally:
        server.should_exit = True
        await serving
        await runtime.drain()
        await runtime.stop()
