"""`GET …/models`: an account's own catalogue, passed through and kept for a while per kind of account."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from accounts.states import Kind
from gateway.consumers.base import Gate, Scope
from gateway.consumers.render import document
from gateway.consumers.simple import Document
from gateway.errors import GatewayError, NoUsableAccount, Unauthorized, UpstreamError
from gateway.turns.answers import answer
from gateway.turns.catalogue import Catalogue
from gateway.turns.request import Route

KINDS = {Route.CODEX: (Kind.CODEX, Kind.OPENAI), Route.V1: (Kind.OPENAI, Kind.CODEX)}


def models_of(gate: Callable[[], Gate], route: Route) -> Callable[[Scope], Awaitable[Document]]:
    """The responder for the models of `route`; the kind of account whose catalogue it is comes first."""

    async def respond(scope: Scope) -> Document:
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        query = scope["query_string"].decode("ascii", "replace")
        try:
            if gate().keys.from_authorization(dict(headers).get("authorization")) is None:
                raise Unauthorized("No valid key of this gateway: send `Authorization: Bearer pm_…`.")
            return await _first(gate().engine.catalogue, route, query, headers)
        except GatewayError as error:
            told = answer(error, route)
            return Document(told.status, document(told), dict(told.headers))

    return respond


async def _first(catalogue: Catalogue, route: Route, query: str, headers: list[tuple[str, str]]) -> Document:
    failure: GatewayError = NoUsableAccount("No account yet: the operator adds one with `manage.py add_account`.")
    for kind in KINDS[route]:
        try:
            page = await catalogue.get(kind, query, headers)
        except UpstreamError as error:
            failure = error
            continue
        except NoUsableAccount:
            # What an upstream said tells more than that there is no other one.
            continue
        return Document(page.status, page.body, {"etag": page.etag} if page.etag else {})
    raise failure
