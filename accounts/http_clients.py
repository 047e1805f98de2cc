"""HTTP clients by the way they go: one for each proxy, and one for no proxy.

One owner makes them, lends them and closes them. A client whose proxy no account has any more is closed at once, or
when the last request that borrowed it is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

import httpx


class Client(Protocol):
    """Whatever sends requests over connections of its own."""

    async def aclose(self) -> None: ...


C = TypeVar("C", bound=Client)


class _Held(Generic[C]):
    """A client and how many have borrowed it."""

    __slots__ = ("client", "loans")

    def __init__(self, client: C) -> None:
        self.client = client
        self.loans = 0


class Loan(Generic[C]):
    """A borrowed client; give it back once. Giving it back again does nothing."""

    __slots__ = ("_held", "_owner", "client")

    def __init__(self, owner: HttpClients[C], held: _Held[C]) -> None:
        self._owner = owner
        self._held: _Held[C] | None = held
        self.client = held.client

    async def give_back(self) -> None:
        """The request is over, and its response closed."""
        held, self._held = self._held, None
        if held is not None:
            await self._owner.take_back(held)


class HttpClients(Generic[C]):
    """Makes clients with `make` when they are first needed. Await `close` at the end, on the loop they were used on.

    Closing one takes no longer than `patience` seconds; what is left of its connections then goes with the process.
    """

    def __init__(self, make: Callable[[str | None], C], patience: float) -> None:
        self._make = make
        self._patience = patience
        self._held: dict[str | None, _Held[C]] = {}
        self._retired: set[_Held[C]] = set()

    def __repr__(self) -> str:
        return f"<HttpClients {len(self._held)} in use, {len(self._retired)} retired>"

    def borrow(self, proxy: str | None) -> Loan[C]:
        """Lend the client that goes by `proxy`."""
        held = self._held.get(proxy)
        if held is None:
            held = self._held[proxy] = _Held(self._make(proxy))
        held.loans += 1
        return Loan(self, held)

    @asynccontextmanager
    async def borrowed(self, proxy: str | None) -> AsyncIterator[C]:
        """Lend the client that goes by `proxy` for the time of the context."""
        loan = self.borrow(proxy)
        try:
            yield loan.client
        finally:
            await loan.give_back()

    async def keep(self, proxies: Collection[str]) -> None:
        """Let the clients of all other proxies go; the one that goes by none stays."""
        gone = [proxy for proxy in self._held if proxy is not None and proxy not in proxies]
        retired = [self._held.pop(proxy) for proxy in gone]
        self._retired.update(retired)
        for held in retired:
            if held.loans == 0:
                await self._close(held)

    async def take_back(self, held: _Held[C]) -> None:
        """A loan is over; `Loan.give_back` calls this."""
        held.loans -= 1
        if held in self._retired and held.loans == 0:
            await self._close(held)

    async def close(self) -> None:
        """Close every client, borrowed or not."""
        everything = [*self._held.values(), *self._retired]
        self._held.clear()
        for held in everything:
            await self._close(held)

    async def _close(self, held: _Held[C]) -> None:
        self._retired.discard(held)
        try:
            async with asyncio.timeout(self._patience):
                await held.client.aclose()
        except (TimeoutError, httpx.HTTPError):
            # Nothing is sent any more; a proxy that does not let go in good order is left alone.
            pass
