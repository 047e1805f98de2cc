"""The systems that are measured, as processes of their own, and how to start and stop them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from tests.bench.machine import cpu_clock
from tests.bench.requests import Endpoint
from tests.support.processes import ROOT, GatewayProcess, environment

CODEX_PATH = "/backend-api/codex/responses"
# The default of eight responses per account would make turns wait for each other; nothing else is changed.
GATEWAY_SETTINGS = {"GATEWAY_STREAMS_PER_ACCOUNT": "256"}


class Protocol(StrEnum):
    """How clients speak to a system."""

    SSE = "SSE"
    WEBSOCKET = "WebSocket"


class Role(StrEnum):
    """What a system is in a comparison: what others are compared with, or what is compared."""

    DIRECT = "upstream alone"
    BARE = "bare relay"
    GATEWAY = "gateway"
    PEER = "peer"


@dataclass(frozen=True, slots=True)
class System:
    """Something that answers turns. `pid` is None when its process is not known, and then neither is its cost."""

    name: str
    protocol: Protocol
    role: Role
    endpoint: Endpoint
    pid: int | None = None

    @property
    def label(self) -> str:
        return f"{self.protocol}: {self.name}"


@dataclass(frozen=True, slots=True)
class Peer:
    """Another gateway to measure beside this one: its base URL, a key for it, its process if it runs here."""

    url: str
    key: str = ""
    pid: int | None = None

    def systems(self) -> list[System]:
        """The peer over both protocols. Raises `ProcessLookupError` when it has a `pid` that nobody has."""
        if self.pid is not None:
            cpu_clock(self.pid)
        endpoint = endpoint_at(self.url.rstrip("/") + "/responses", self.key)
        name = f"peer {endpoint.host}:{endpoint.port}"
        return [System(name, protocol, Role.PEER, endpoint, self.pid) for protocol in Protocol]


@dataclass(frozen=True, slots=True)
class Stage:
    """Everything that runs: the upstream's process, and all systems in the order in which they take turns."""

    upstream_pid: int
    systems: Sequence[System]


class StartFailed(Exception):
    """A process of the benchmark did not start. The message holds what it said."""


class Program:
    """A program of this package that says where it listens: `python -m tests.bench.<module>`. Stop it at the end."""

    def __init__(self, module: str, folder: Path, *arguments: str) -> None:
        self._module = module
        self._log = folder / f"{module}.log"
        with self._log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"tests.bench.{module}", *arguments],
                cwd=ROOT,
                env=environment(folder, {}),
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self.pid = self._process.pid

    def url(self) -> str:
        """Wait until it listens, and return where; raises `StartFailed` when it does not come to that."""
        assert self._process.stdout is not None
        found = re.match(rb"ready on (http://\S+)", self._process.stdout.readline())
        if found is None:
            raise StartFailed(f"tests.bench.{self._module} did not start:\n{self._log.read_text()}")
        return found[1].decode()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def endpoint_at(url: str, key: str = "") -> Endpoint:
    """The endpoint that `url` names; raises `ValueError` for anything but plain HTTP."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise ValueError(f"{url!r} cannot be measured; give a URL like http://127.0.0.1:8080/v1.")
    return Endpoint(parts.hostname, parts.port or 80, parts.path, key)


@contextmanager
def running(peers: Sequence[Peer], upstream_port: int, say: Callable[[str], None]) -> Iterator[Stage]:
    """Start everything, and stop it at the end. Raises `StartFailed`, or `AssertionError` with a gateway's output."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="pointsman-bench-")))
        starter = Starter(folder, stack)
        upstream, pid = starter.start("upstream", "--port", str(upstream_port))
        say(f"the upstream is {upstream}, process {pid}")
        systems = [*direct(upstream), *starter.start_all(upstream)]
        systems += [system for peer in peers for system in peer.systems()]
        for system in systems[len(Protocol) :]:
            say(f"{system.label} is {system.endpoint.host}:{system.endpoint.port}, process {system.pid or 'unknown'}")
        order = list(Protocol)
        yield Stage(pid, sorted(systems, key=lambda each: order.index(each.protocol)))


def direct(upstream: str) -> list[System]:
    """The upstream without anything between: what clients and upstream cost together."""
    endpoint = endpoint_at(upstream + CODEX_PATH)
    return [System(Role.DIRECT, protocol, Role.DIRECT, endpoint) for protocol in Protocol]


class Starter:
    """Starts processes in `folder`; whatever has been started is stopped when `stack` is closed."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack

    def start(self, module: str, *arguments: str) -> tuple[str, int]:
        """Start a program of this package; where it listens, and its process."""
        program = Program(module, self._folder, *arguments)
        self._stack.callback(program.stop)
        return program.url(), program.pid

    def start_all(self, upstream: str) -> list[System]:
        """Start the relay and the gateways at the same time. What one of them raises comes when all have ended."""
        with ThreadPoolExecutor() as threads:
            starting = [
                threads.submit(self.start_bare, upstream),
                threads.submit(self.start_gateway, upstream, "http"),
                threads.submit(self.start_gateway, upstream, "websocket"),
            ]
        return [system for future in starting for system in future.result()]

    def start_bare(self, upstream: str) -> list[System]:
        url, pid = self.start("bare", "--upstream", upstream + CODEX_PATH)
        return [System(Role.BARE, protocol, Role.BARE, endpoint_at(url + CODEX_PATH), pid) for protocol in Protocol]

    def start_gateway(self, upstream: str, transport: str) -> list[System]:
        """A gateway as its operator runs it, on SQLite, with one account that is reached over `transport`."""
        data_dir = self._folder / f"gateway-{transport}"
        data_dir.mkdir()
        gateway = GatewayProcess(data_dir, GATEWAY_SETTINGS)
        self._stack.callback(gateway.stop)
        gateway.add_account("bench", f"{upstream}/v1", "--transport", transport)
        endpoint, pid = endpoint_at(gateway.url + CODEX_PATH, gateway.key), gateway.process.pid
        if transport == "http":
            return [System("gateway, HTTP", Protocol.SSE, Role.GATEWAY, endpoint, pid)]
        return [
            System("gateway, lanes", Protocol.SSE, Role.GATEWAY, endpoint, pid),
            System("gateway", Protocol.WEBSOCKET, Role.GATEWAY, endpoint, pid),
        ]


def fits_open_files(sockets: int) -> bool:
    """Whether this process and its children may have so many sockets open, with room for their files."""
    return sockets * 2 + 200 < os.sysconf("SC_OPEN_MAX")
