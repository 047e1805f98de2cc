"""The models that the accounts offer, asked upstream and kept for a while."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from accounts.registry import AccountSnapshot, Registry
from accounts.states import Kind, State
from gateway.clock import Clock
from gateway.diagnostics import Trace
from gateway.errors import NoUsableAccount, Refusal, UpstreamRefused
from gateway.turns.routing import credential_headers
from gateway.upstream.exchange import Target
from gateway.upstream.headers import forwarded
from gateway.upstream.http import HttpTransport

FRESH_FOR = 300.0
MAX_PAGES = 64


@dataclass(frozen=True, slots=True)
class Page:
    """A catalogue as an upstream gave it; `kept_at` in monotonic seconds."""

    status: int
    body: bytes
    etag: str | None
    kept_at: float


class Catalogue:
    """One page per kind of account and query."""

    def __init__(self, registry: Registry, http: HttpTransport, clock: Clock) -> None:
        self._registry = registry
        self._http = http
        self._clock = clock
        self._pages: dict[tuple[Kind, str], Page] = {}

    async def get(self, kind: Kind, query: str, headers: Sequence[tuple[str, str]]) -> Page:
        """The models of a usable account of `kind`; raises `NoUsableAccount` or `UpstreamError`."""
        account = self._usable(kind)
        page = self._pages.get((kind, query))
        if page is None or self._clock.monotonic() - page.kept_at > FRESH_FOR:
            page = await self._fetch(account, query, headers)
            if len(self._pages) >= MAX_PAGES:
                self._pages.clear()
            self._pages[kind, query] = page
        return page

    def _usable(self, kind: Kind) -> AccountSnapshot:
        now = self._clock.wall()
        for account in self._registry.accounts:
            if account.kind is kind and account.credentials is not None and account.state_at(now) is not State.DISABLED:
                return account
        raise NoUsableAccount(f"No account of kind {kind} is in the pool.")

    async def _fetch(self, account: AccountSnapshot, query: str, headers: Sequence[tuple[str, str]]) -> Page:
        sent = [*forwarded(headers), *credential_headers(account).items(), ("accept", "application/json")]
        target = Target(account.id, account.base_url, sent, Trace("", "", account.name, 1, self._clock))
        response = await self._http.fetch(target, "/models" + (f"?{query}" if query else ""))
        if response.status_code != 200:
            message = f"The upstream answered the models request with {response.status_code}."
            raise UpstreamRefused(Refusal(response.status_code, message=message))
        return Page(200, response.content, response.headers.get("etag"), self._clock.monotonic())
