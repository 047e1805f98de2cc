"""What a turn borrows: one request and its response, on a lane or on an HTTP connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.diagnostics import Trace
from gateway.protocol.chain import Chain
from gateway.protocol.events import Event


@dataclass(frozen=True, slots=True)
class Target:
    """Where an exchange goes: the account's base URL and every header of the request, credentials included.

    `trace` tells whose attempt it is. With a `proxy` there is no other way to the account.
    """

    account_id: int
    base_url: str
    headers: Sequence[tuple[str, str]]
    trace: Trace
    proxy: str | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        return f"<Target account {self.account_id}>"


# Passes plain events on to the client at once, all or none; says whether it did.
PassOn = Callable[[Sequence[Event]], bool]


class Exchange(Protocol):
    """One response, read by the turn's own task.

    Call `send` once, `receive` until a terminal event, then `close` once, whatever happened in between. All raise
    `UpstreamError`s. Cancelling `send` or `receive` is allowed; afterwards only `close` is.
    """

    transport: str

    async def send(self, payload: bytes) -> None:
        """Cross the send boundary. `ConnectFailed` means that provably nothing was sent."""

    async def receive(self, pass_on: PassOn | None = None) -> list[Event]:
        """Wait for the next events, at least one, and return all that are there.

        Events that only have to be carried are offered to `pass_on` the moment they arrive. What it takes is not
        returned, so a response may pass without its task being woken for each event. It is called on the event loop,
        only during this call, with events in their order.
        """

    def headers(self) -> Mapping[str, str]:
        """The upstream's response or handshake headers, names in lower case; call it after `send`."""

    def watch_backlog(self, grew: Callable[[int], None]) -> None:
        """Call `grew` with the bytes that wait to be received whenever they grow, until `close`."""

    def backlog(self) -> int:
        """Bytes that wait to be received."""

    def publish(self, response_id: str) -> bool:
        """The response is complete: what continues it belongs to this exchange's connection, if it returns True."""

    def remember(self, chain: Chain | None) -> None:
        """The connection now holds `chain`, which a later full request may prove to extend."""

    async def close(self, *, clean: bool) -> None:
        """End the upstream's work; returns when it has really ended, or after the close timeout.

        `clean` says that a terminal event was received, so the connection may carry another response.
        """
