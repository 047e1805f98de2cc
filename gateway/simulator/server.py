"""The simulated upstream as something to start, use and stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType

from gateway.clock import Clock
from gateway.simulator.accounts import SimulatedAccount
from gateway.simulator.backend import Backend
from gateway.simulator.faults import Faults
from gateway.simulator.http import Head, HttpConnection
from gateway.simulator.observed import Observed
from gateway.simulator.options import Options
from gateway.simulator.websocket import WebSocketConnection
from gateway.simulator.wire import Receiver, Wire


class Simulator:
    """An upstream on a port of its own; use it as `async with Simulator() as upstream`.

    `accounts` maps bearer tokens to accounts; without it every token is accepted. `faults` are active from
    the start, in the syntax of `gateway.simulator.faults`; a mistake in one raises `FaultError`. `options`
    shape the answers that no request shapes. With `keep_bodies` each record keeps the body that came. Use it
    from one event loop only; other processes use the paths of `gateway.simulator.control`.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        accounts: Mapping[str, SimulatedAccount] | None = None,
        faults: Iterable[str] = (),
        options: Options | None = None,
        clock: Clock | None = None,
        keep_bodies: bool = False,
    ) -> None:
        self.faults = Faults(tuple(faults))
        self.backend = Backend(accounts, self.faults, options or Options(), clock or Clock(), keep_bodies=keep_bodies)
        self._address = (host, port)
        self._server: asyncio.Server | None = None
        self._wires: dict[Wire, None] = {}
        self._connections = 0
        self.faults.subscribe(self._check_idle)

    def __repr__(self) -> str:
        state = "stopped" if self._server is None else self.base_url("/")
        return f"<Simulator {state} | {self.observed!r} | {self.faults!r}>"

    @property
    def observed(self) -> Observed:
        return self.backend.observed

    @property
    def port(self) -> int:
        """The port it listens on; raises `RuntimeError` before it is started."""
        if self._server is None:
            raise RuntimeError("The simulator is not started; use it as an async context manager.")
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The base URL of the OpenAI API."""
        return self.base_url("/v1")

    def base_url(self, path: str) -> str:
        """The base URL under another path, for example `/backend-api/codex`."""
        return f"http://{self._address[0]}:{self.port}{path}"

    async def __aenter__(self) -> Simulator:
        """Listen; raises `OSError` when the port is taken."""
        loop = asyncio.get_running_loop()
        host, port = self._address
        self._server = await loop.create_server(lambda: Wire(self._opened, self._closed), host, port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop listening, cut every connection and wait until nothing runs any more."""
        server, self._server = self._server, None
        self.backend.stopping = True
        wires = list(self._wires)
        if server is not None:
            server.close()
        for wire in wires:
            wire.abort()
        for wire in wires:
            await wire.wait_closed()
        if server is not None:
            await server.wait_closed()

    async def until(self, condition: Callable[[Observed], bool], timeout: float = 5.0) -> None:
        """Wait until `condition` holds for what has been observed; raises `TimeoutError` with the observations."""
        changed = asyncio.Event()
        self.observed.subscribe(changed.set)
        try:
            async with asyncio.timeout(timeout):
                while not condition(self.observed):
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            raise TimeoutError(f"What was waited for was not seen in {timeout:g} s: {self.observed!r}") from None
        finally:
            self.observed.unsubscribe(changed.set)

    def _opened(self, wire: Wire) -> Receiver:
        self._wires[wire] = None
        self._connections += 1
        return HttpConnection(wire, self._connections, self.backend, self._upgrade)

    def _closed(self, wire: Wire) -> None:
        self._wires.pop(wire, None)

    def _upgrade(self, http: HttpConnection, head: Head, trailing: bytes) -> Receiver:
        connection = WebSocketConnection(http, head, self.backend)
        connection.start(trailing)
        return connection

    def _check_idle(self) -> None:
        for wire in list(self._wires):
            if isinstance(wire.receiver, WebSocketConnection):
                wire.receiver.check_idle()
