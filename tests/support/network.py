"""The real network for a runtime in a test: real sockets, and no issuer that could renew a token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from accounts.tokens import Refreshed, Result
from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.runtime import Network
from gateway.upstream.connection import WebSocketDialer
from gateway.upstream.http import HttpTransport


class ScriptedRefresher:
    """Renews nothing, like a refresher whose issuer is out of reach, unless `answer` is set."""

    def __init__(self) -> None:
        self.answer: Callable[[int, str | None], Awaitable[Refreshed]] | None = None

    async def refresh(self, account: int, refused: str | None = None) -> Refreshed:
        return Refreshed(Result.LATER) if self.answer is None else await self.answer(account, refused)

    async def keep(self, proxies: Collection[str]) -> None:
        """There are no connections."""

    async def close(self) -> None:
        """There is nothing under way."""


def real_network(tunables: Tunables, clock: Clock, refresher: ScriptedRefresher | None = None) -> Network:
    return Network(WebSocketDialer(tunables, clock), HttpTransport(tunables, clock), refresher or ScriptedRefresher())
