"""What a server listens on, and its times and sizes."""

from __future__ import annotations

from dataclasses import dataclass, fields

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class TcpEndpoint:
    """Listen on `host`:`port`. Port 0 asks the system for a free one; `ready` is told which."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class InheritedSocket:
    """Listen on a socket that is open and listening already. The server owns `fd` and closes it."""

    fd: int


Endpoint = TcpEndpoint | InheritedSocket


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Times are seconds, sizes are bytes. Raises `ValueError` for a value that cannot work."""

    max_message_bytes: int = 64 * MIB
    """Largest WebSocket message, either way. A larger one from the client closes with 1009."""
    header_bytes: int = 64 * KIB
    """Request line and headers together. More is answered 400 `headers_too_large`."""
    queue_messages: int = 256
    """WebSocket messages that may wait for the application. One more closes with 1008."""
    queue_bytes: int = 128 * MIB
    """Bytes that may wait for the application, body chunks or messages."""
    ping_interval: float = 20.0
    ping_timeout: float = 30.0
    """After a ping: a WebSocket from which nothing arrived for so long is dropped."""
    accept_timeout: float = 30.0
    """For the application to accept or deny a WebSocket; then the handshake is answered 503."""
    close_timeout: float = 2.0
    """For the peer's answer to a close frame, and for cancelled applications at shutdown."""
    retire_grace: float = 0.25
    """At shutdown, for a request that a client sent on an open connection before it could know."""
    application_close_timeout: float = 10.0
    """For an application to end by itself after its client left; then it is cancelled."""
    keep_alive_timeout: float = 60.0
    """Without a byte from an HTTP client between requests or within one; then the connection is closed."""
    stall_timeout: float = 60.0
    """For a client to take or acknowledge something of what was sent; then the connection is given up. It is the
    last resort: an application that watches its clients should lose patience earlier."""
    linger_timeout: float = 5.0
    linger_bytes: int = 64 * MIB
    """The rest of an upload that was answered early is read and dropped within these two."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) <= 0:
                raise ValueError(f"{field.name} must be greater than zero, not {getattr(self, field.name)}.")
        if self.queue_bytes < self.max_message_bytes:
            raise ValueError(
                f"queue_bytes ({self.queue_bytes}) is smaller than max_message_bytes "
                f"({self.max_message_bytes}), so the largest message could never be queued; raise queue_bytes."
            )
