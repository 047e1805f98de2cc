"""The models that the accounts offer, asked upstream, kept for a while, and shown as the client's key may use them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from accounts.registry import AccountSnapshot, Registry
from accounts.states import Kind, State
from gateway.clock import Clock
from gateway.diagnostics import Trace
from gateway.errors import NoUsableAccount, Refusal, UpstreamError, UpstreamRefused
from gateway.keys import KeySnapshot
from gateway.protocol.models import Model, Renamed, read_models, with_names
from gateway.turns.names import Names
from gateway.turns.routing import credential_headers
from gateway.upstream.exchange import Target
from gateway.upstream.headers import forwarded
from gateway.upstream.http import HttpTransport

FRESH_FOR = 300.0
MAX_PAGES = 64
MODELS_ETAG = "x-models-etag"
# So many accounts are asked before the client is told that it cannot be told; one that failed comes last for a minute.
MOST_ASKED = 3
FAILED_FOR = 60.0
# An operator who disables an account does not want it to be spoken to.
ORDER = (State.ACTIVE, State.LIMITED, State.PAUSED, State.NEEDS_LOGIN)


@dataclass(frozen=True, slots=True)
class Page:
    """The models of an account as it told them; `kept_at` in monotonic seconds."""

    models: Sequence[Model]
    etag: str | None
    kept_at: float


class Catalogue:
    """One page per account and query, shown as the client's key may use it."""

    def __init__(self, registry: Registry, http: HttpTransport, names: Names, clock: Clock) -> None:
        self._registry = registry
        self._http = http
        self._names = names
        self._clock = clock
        self._pages: dict[tuple[int, str], Page] = {}
        self._failed_at: dict[int, float] = {}

    async def get(
        self, key: KeySnapshot, kind: Kind, query: str, headers: Sequence[tuple[str, str]]
    ) -> tuple[list[Model], str | None]:
        """The models of the account of `kind` that offers most, of the next one if that one cannot tell.

        They are those that `key` may use, with its aliases; beside them the ETag of that list. Raises
        `NoUsableAccount` or `UpstreamError`.
        """
        page = await self._page(key, kind, query, headers)
        names = [Renamed(alias.name, alias.model, alias.effort) for alias in self._names.of(key)]
        models = [model for model in page.models if key.may_use(model.name)]
        return with_names(models, names), self._etag(key, page.etag)

    async def _page(self, key: KeySnapshot, kind: Kind, query: str, headers: Sequence[tuple[str, str]]) -> Page:
        failure: UpstreamError | NoUsableAccount = NoUsableAccount(f"No account of kind {kind} is in the pool.")
        for account in self._by_offer(key, kind)[:MOST_ASKED]:
            page = self._pages.get((account.id, query))
            if page is not None and self._clock.monotonic() - page.kept_at <= FRESH_FOR:
                return page
            try:
                page = await self._fetch(account, query, headers)
            except UpstreamError as error:
                self._failed_at[account.id] = self._clock.monotonic()
                failure = error
                continue
            if len(self._pages) >= MAX_PAGES:
                self._pages.clear()
            self._pages[account.id, query] = page
            return page
        raise failure

    def headers_for(self, key: KeySnapshot, account: AccountSnapshot, headers: Mapping[str, str]) -> Mapping[str, str]:
        """The headers of an account's answer as the client of `key` may see them.

        Clients fetch the models again after each answer whose `x-models-etag` is not that of the list they have. So
        the header passes only where that list is this account's, and then as the ETag of what the key sees of it.
        """
        told = headers.get(MODELS_ETAG)
        if told is None:
            return headers
        for place in [place for place, page in self._pages.items() if place[0] == account.id and page.etag != told]:
            del self._pages[place]
        shown = {name: value for name, value in headers.items() if name != MODELS_ETAG}
        sources = self._by_offer(key, account.kind)
        etag = self._etag(key, told) if sources and sources[0].id == account.id else None
        return shown if etag is None else {**shown, MODELS_ETAG: etag}

    def _etag(self, key: KeySnapshot, told: str | None) -> str | None:
        """The upstream's ETag, told apart by what the key sees of the list."""
        names = [f"{alias.name}={alias.model}/{alias.effort}" for alias in self._names.of(key)]
        if told is None or not (names or key.models):
            return told
        digest = hashlib.sha256("\n".join([told, *names, "", *key.models]).encode()).hexdigest()
        return f'"{digest[:32]}"'

    def _by_offer(self, key: KeySnapshot, kind: Kind) -> list[AccountSnapshot]:
        """The accounts to ask, best first: those that take turns, have not failed just now, and offer most models."""
        now, moment = self._clock.wall(), self._clock.monotonic()

        def standing(account: AccountSnapshot) -> tuple[bool, int, int]:
            failed_at = self._failed_at.get(account.id)
            failed = failed_at is not None and moment - failed_at <= FAILED_FOR
            return failed, ORDER.index(account.state_at(now)), -len(account.models or ())

        found = [
            account
            for account in self._registry.accounts
            if account.kind is kind and account.credentials is not None and account.state_at(now) in ORDER
        ]
        return sorted((each for each in found if key.accounts is None or each.id in key.accounts), key=standing)

    async def _fetch(self, account: AccountSnapshot, query: str, headers: Sequence[tuple[str, str]]) -> Page:
        sent = [*forwarded(headers), *credential_headers(account).items(), ("accept", "application/json")]
        target = Target(account.id, account.base_url, sent, Trace("", "", account.name, 1, self._clock), account.proxy)
        response = await self._http.fetch(target, "/models" + (f"?{query}" if query else ""))
        if response.status_code != 200:
            message = f"The upstream answered the models request with {response.status_code}."
            raise UpstreamRefused(Refusal(response.status_code, message=message))
        return Page(read_models(response.content), response.headers.get("etag"), self._clock.monotonic())
