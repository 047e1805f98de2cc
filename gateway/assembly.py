"""A runtime of real parts: the database, the network, the issuer of tokens."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from accounts.asking import Asker
from accounts.issuer import read_issuer
from accounts.tokens import Refreshed, Refresher
from accounts.web import Web
from gateway.chores import Chores, pool_chores
from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.forwarding.envelope import signing_keys
from gateway.runtime import Network, Runtime
from gateway.storage import DatabaseStore
from gateway.upstream.connection import WebSocketDialer
from gateway.upstream.http import HttpTransport


class OwnRefresher:
    """A refresher that closes its HTTP client with it."""

    def __init__(self, web: Web, refresher: Refresher) -> None:
        self._web = web
        self._refresher = refresher

    async def refresh(self, account: int, refused: str | None = None) -> Refreshed:
        return await self._refresher.refresh(account, refused)

    async def keep(self, proxies: Collection[str]) -> None:
        await self._web.keep(proxies)

    async def close(self) -> None:
        await self._refresher.close()
        await self._web.__aexit__(None, None, None)


def real_runtime(tunables: Tunables, token_keys: Sequence[str], *, with_chores: bool) -> Runtime:
    """A runtime on the running event loop; start it."""
    clock = Clock()
    store = DatabaseStore(token_keys, tunables.streams_per_account, tunables.lease_ttl)
    web = Web()
    refresher = Refresher(web.post, store.run, read_issuer(os.environ), token_keys)
    network = Network(WebSocketDialer(tunables, clock), HttpTransport(tunables, clock), OwnRefresher(web, refresher))
    asker = Asker(web.fetch, refresher, store.run, token_keys)
    chores = Chores(pool_chores(asker, tunables, clock.wall), clock) if with_chores else None
    keys = signing_keys(token_keys)
    return Runtime(tunables, store, clock, network, chores, signing_keys=keys)
