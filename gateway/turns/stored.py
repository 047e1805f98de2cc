"""Stored responses: what may be asked about one of them, at the account that made it.

These calls run nothing, so they are no turns: they are passed on, once, and have no row in the ledger.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from accounts.registry import AccountSnapshot, Registry
from gateway.clock import Clock
from gateway.diagnostics import Trace
from gateway.errors import NoUsableAccount, Overloaded, ResponseNotFound, UpstreamRefused
from gateway.finish import finish_first
from gateway.protocol.events import refusal_from_http
from gateway.turns.routing import credential_headers
from gateway.turns.ties import Ties
from gateway.upstream.exchange import Exchange, Target
from gateway.upstream.headers import forwarded
from gateway.upstream.http import Document, HttpTransport

# Seconds until the row of a turn that has just ended is written for certain, if nothing is wrong.
SETTLING = 0.5
LONGEST_ID = 200
# They take no permit: whoever waits for a response in the background must not need the place which that one holds.
MOST_AT_ONCE = 256

# The account that made a response of a client (the id of its key), by the ledger.
FindMaker = Callable[[int, str], Awaitable[int | None]]

_ID = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class StoredCall:
    """A call about a stored response. `rest` is what follows its id in the path, `query` as the client wrote it."""

    client: int
    response_id: str
    method: str
    rest: str
    query: str
    headers: Sequence[tuple[str, str]]


class StoredCalls:
    """Passes calls on to the accounts that store the responses."""

    def __init__(
        self, registry: Registry, ties: Ties, http: HttpTransport, clock: Clock, find_maker: FindMaker
    ) -> None:
        self._registry = registry
        self._ties = ties
        self._http = http
        self._clock = clock
        self._find_maker = find_maker
        self._running = 0
        self._followed = 0

    async def make(self, call: StoredCall) -> Document:
        """The account's answer; raises `Overloaded`, `ResponseNotFound`, `NoUsableAccount` or `UpstreamError`."""
        if self._running >= MOST_AT_ONCE:
            raise Overloaded("Too many calls about stored responses run at once.", code="too_many_calls")
        self._running += 1
        try:
            return await self._make(call)
        finally:
            self._running -= 1

    @asynccontextmanager
    async def followed(self, call: StoredCall) -> AsyncIterator[Exchange]:
        """The account's event stream for the call, to be sent and read; it is closed with the context.

        Raises as `make` does, but no `UpstreamError`, which come with reading.
        """
        if self._followed >= MOST_AT_ONCE:
            raise Overloaded("Too many clients listen to stored responses at once.", code="too_many_calls")
        self._followed += 1
        try:
            account = await self._owner(call)
            exchange = self._http.follow(self._target(account, call, "text/event-stream"), _path(call))
            clean = False
            try:
                yield exchange
                clean = True
            finally:
                await finish_first(exchange.close(clean=clean))
        finally:
            self._followed -= 1

    async def _make(self, call: StoredCall) -> Document:
        account = await self._owner(call)
        document = await self._http.call(self._target(account, call, "application/json"), call.method, _path(call))
        if document.status != 200:
            now = self._clock.wall()
            raise UpstreamRefused(refusal_from_http(document.status, document.headers, document.body, now))
        return document

    def _target(self, account: AccountSnapshot, call: StoredCall, accept: str) -> Target:
        if account.credentials is None:
            raise NoUsableAccount(f"The account {account.name} stores this response and needs its operator.")
        own = (("accept", accept), ("accept-encoding", "identity"))
        sent = [*forwarded(call.headers), *credential_headers(account).items(), *own]
        trace = Trace("", "", account.name, 1, self._clock)
        return Target(account.id, account.base_url, sent, trace, account.proxy)

    async def _owner(self, call: StoredCall) -> AccountSnapshot:
        """The account that made the response for this client; to any other client there is no such response."""
        if _ID.fullmatch(call.response_id[: LONGEST_ID + 1]) and len(call.response_id) <= LONGEST_ID:
            account_id = await self._maker(call)
            account = None if account_id is None else self._registry.get(account_id)
            if account is not None:
                return account
        raise ResponseNotFound(f"There is no response {call.response_id[:LONGEST_ID]!r} of this key.")

    async def _maker(self, call: StoredCall) -> int | None:
        known = self._ties.storing_account(call.client, call.response_id)
        if known is not None:
            return known
        found = await self._find_maker(call.client, call.response_id)
        if found is None:
            # Another process may just have made it, and not have written that down yet.
            await asyncio.sleep(SETTLING)
            found = await self._find_maker(call.client, call.response_id)
        return found


def _path(call: StoredCall) -> str:
    return f"/responses/{call.response_id}{call.rest}" + (f"?{call.query}" if call.query else "")
