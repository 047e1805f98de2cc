"""What a world is made from, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.conf import Tunables
from tests.sim import operator, upstream
from tests.sim.coverage import Coverage

# Limits small enough to be met, and times short enough to be waited for.
TUNABLES = Tunables(
    connect_timeout=3,
    handshake_timeout=8,
    read_timeout=60,
    write_timeout=8,
    pool_timeout=2,
    http_max_connections=6,
    http_max_idle=3,
    response_start_timeout=15,
    stream_idle_timeout=20,
    websocket_idle_timeout=12,
    lanes_per_account=5,
    lane_max_age=200,
    lane_idle_timeout=60,
    admission_turns=8,
    admission_bytes=2_000_000,
    admission_wait=6,
    max_body_bytes=100_000,
    client_stall_timeout=15,
    client_buffer_bytes=500_000,
    client_buffer_total=800_000,
    close_timeout=2,
    soft_session_ttl=120,
    # Half of what a client or an account may be silent, so that many of these are met when it is over.
    drain_timeout=7,
    header_wait=5,
    keepalive_interval=3,
    # Less than what a lane survives: a process that stalls for longer comes back with lanes that are not its own.
    lease_ttl=5,
)
CLIENTS = 24
FAULTS = (*upstream.NAMES, "network", *(f"operator:{name}" for name in operator.NAMES), "rude")


@dataclass(frozen=True)
class Options:
    """Everything a world is made from. The same options give the same world, event by event.

    `plant` names a defect of `PLANTED` that the gateway has. `faults` are what may happen, of `FAULTS`; `chance` is
    that of a fault for each request; `think` and `calm` are the mean seconds between two turns of a client and two
    deeds of the operator. `clients` leaves only those of these numbers.
    """

    seed: int = 1
    turns: int = 2000
    faults: frozenset[str] = frozenset(FAULTS)
    replicas: int = 2
    chance: float = 0.25
    think: float = 2.0
    calm: float = 12.0
    clients: frozenset[int] | None = None
    plant: str = ""


@dataclass(frozen=True)
class Violation:
    """A broken promise: which, how, when, and what to look for in the trace. `traceback` is that of a defect."""

    name: str
    text: str
    at: float
    turn: int
    about: frozenset[str]
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.text} (turn {self.turn}, {self.at:.3f} s)"


@dataclass(frozen=True)
class Result:
    """What came of a run. `rate` is turns per second of processor time."""

    options: Options
    digest: str
    turns: int
    events: int
    seconds: float
    cpu_seconds: float
    coverage: Coverage
    violation: Violation | None
    forwarded: int = 0
    timeline: list[str] = field(default_factory=list)
    everything: Callable[[], list[str]] = list

    @property
    def rate(self) -> float:
        return self.turns / max(self.cpu_seconds, 1e-9)
