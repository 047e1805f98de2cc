"""`GET …/models`: the models of an account in the shape of the route, as the client's key may use them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from accounts.states import Kind
from gateway.consumers.base import Gate, Scope
from gateway.consumers.keyed import keyed
from gateway.consumers.simple import Document
from gateway.errors import GatewayError, NoUsableAccount, UpstreamError
from gateway.keys import KeySnapshot
from gateway.protocol.models import as_catalogue, as_list, is_readable
from gateway.protocol.wire import error_body
from gateway.turns.catalogue import Catalogue
from gateway.turns.request import Route

KINDS = {Route.CODEX: (Kind.CODEX, Kind.OPENAI), Route.V1: (Kind.OPENAI, Kind.CODEX)}


def models_of(gate: Callable[[], Gate], route: Route) -> Callable[[Scope], Awaitable[Document]]:
    """The responder for the models of `route`; the kind of account whose catalogue it is comes first."""

    async def respond(key: KeySnapshot, scope: Scope) -> Document:
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        query = scope["query_string"].decode("ascii", "replace")
        return await _first(gate().engine.catalogue, key, route, query, headers)

    return keyed(gate, route, respond)


async def _first(
    catalogue: Catalogue, key: KeySnapshot, route: Route, query: str, headers: list[tuple[str, str]]
) -> Document:
    failure: GatewayError = NoUsableAccount("No account yet: the operator adds one with `manage.py add_account`.")
    for kind in KINDS[route]:
        try:
            models, etag = await catalogue.get(key, kind, query, headers)
        except UpstreamError as error:
            failure = error
            continue
        except NoUsableAccount:
            # What an upstream said tells more than that there is no other one.
            continue
        named = {} if etag is None else {"etag": etag}
        if route is Route.V1:
            return Document(200, as_list(models), named)
        if any(is_readable(model) for model in models):
            return Document(200, as_catalogue(models), named)
        # An empty catalogue would take the client's own away; a 404 leaves it alone.
        message = "No account has a catalogue for Codex; the client's own is as good."
        return Document(404, error_body(message, "invalid_request_error", "no_catalogue"))
    raise failure
