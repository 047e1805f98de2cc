"""What happened on the way to an upstream, as log events and, where OpenTelemetry is installed, as span events.

Every `connect_attempt` is followed by exactly one of `stream_opened`, `connect_failed` and `connect_cancelled`; a turn
that fails afterwards adds one `dispatch_failed`. No event holds a body, a header, a credential, or a URL's user
info or query.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import structlog

from gateway.clock import Clock

try:
    from opentelemetry import trace as otel
except ImportError:  # the optional extra `otel`
    otel = None

log = structlog.get_logger("gateway.upstream")

# The hop on which something happened, seen from this process.
CLIENT = "client_to_gateway"
UPSTREAM = "gateway_to_upstream"
MAX_CHAIN = 8

Fact = str | int | float | None


@dataclass(frozen=True, slots=True)
class Trace:
    """Whose attempt it is. `attempt` counts from 1 within a turn; `clock` times it."""

    turn: str
    replica: str
    account: str
    attempt: int
    clock: Clock

    def emit(self, event: str, **facts: Fact) -> None:
        """Log one event, and add it to the turn's span if there is one."""
        emit(event, turn=self.turn, replica=self.replica, account=self.account, attempt=self.attempt, **facts)

    @contextmanager
    def connecting(self, url: str) -> Iterator[Connecting]:
        """Wrap the opening of one connection to `url`; what it raises comes through, after it was told."""
        began, url = self.clock.monotonic(), shown(url)
        self.emit("connect_attempt", url=url, hop=UPSTREAM)
        connecting = Connecting()
        try:
            yield connecting
        except asyncio.CancelledError:
            self.emit("connect_cancelled", url=url, hop=UPSTREAM, elapsed_ms=self._since(began))
            raise
        except Exception as error:  # whatever it was, it is told of and raised again
            self.emit("connect_failed", url=url, hop=UPSTREAM, elapsed_ms=self._since(began), error=chain(error))
            raise
        self.emit(
            "stream_opened",
            url=url,
            hop=UPSTREAM,
            elapsed_ms=self._since(began),
            peer_address=connecting.peer_address,
            status=connecting.status,
        )

    def _since(self, began: float) -> float:
        return round((self.clock.monotonic() - began) * 1000, 1)


@dataclass(slots=True)
class Connecting:
    """What is learned while a connection is opened: the live connection's peer, and the status of its answer."""

    peer_address: str | None = None
    status: int | None = None


def emit(event: str, **facts: Fact) -> None:
    """Log `event`, and add it to the current span where OpenTelemetry is installed."""
    log.info(event, process=os.getpid(), **facts)
    if otel is not None:
        otel.get_current_span().add_event(event, {name: fact for name, fact in facts.items() if fact is not None})


@contextmanager
def turn_span(turn: str) -> Iterator[None]:
    """A span around one turn, where OpenTelemetry is installed."""
    if otel is None:
        yield
        return
    # Left to itself the span would keep the texts of exceptions, which may quote what an upstream said.
    with otel.get_tracer("pointsman").start_as_current_span(
        "turn", attributes={"turn": turn}, record_exception=False, set_status_on_exception=False
    ):
        yield


def shown(url: str) -> str:
    """`url` as it may be logged: its user info, query and fragment may be secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def chain(error: BaseException | None) -> str:
    """An exception and its causes down to the operating system's, by type; texts are left out, they may quote data.

    Example: `ConnectFailed < httpx.ConnectError < ConnectionRefusedError [ECONNREFUSED]`.
    """
    names: list[str] = []
    while error is not None and len(names) < MAX_CHAIN:
        module = type(error).__module__.partition(".")[0]
        name = type(error).__name__ if module in ("builtins", "gateway") else f"{module}.{type(error).__name__}"
        if isinstance(error, OSError) and error.errno is not None:
            name += f" [{errno.errorcode.get(error.errno, error.errno)}]"
        names.append(name)
        error = error.__cause__ or error.__context__
    return " < ".join(names)


def address(peer: object) -> str | None:
    """`host:port` of a live connection's peer name, or None when it has none."""
    if isinstance(peer, tuple) and len(peer) >= 2:
        return f"{peer[0]}:{peer[1]}"
    return None
