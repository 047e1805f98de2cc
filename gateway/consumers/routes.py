"""Which path goes to which consumer. Unknown paths get a JSON 404; the admin is Django's."""

from __future__ import annotations

from collections.abc import Callable

from gateway.consumers.base import App, Gate, Receive, Scope, Send
from gateway.consumers.chat import ChatHttp
from gateway.consumers.forwarded import ForwardedHttp, is_forwarded
from gateway.consumers.health import health_of, readiness_of
from gateway.consumers.http import ResponsesHttp
from gateway.consumers.models import models_of
from gateway.consumers.openapi import PATH as OPENAPI
from gateway.consumers.openapi import openapi_of
from gateway.consumers.simple import document_app, not_found, wrong_method
from gateway.consumers.stored import PREFIX, StoredStreamHttp, stored_of, wants_stream
from gateway.consumers.unary import UnaryHttp
from gateway.consumers.usage import account_check_of, key_usage_of, pool_usage_of
from gateway.consumers.websocket import ResponsesWebSocket
from gateway.forwarding.envelope import PATH
from gateway.turns.operations import find_operation, is_known_path
from gateway.turns.request import Route

ROUTES = {"codex": Route.CODEX, "chatgpt": Route.CODEX, "v1": Route.V1}
PREFIXES = {Route.CODEX: "/backend-api/codex", Route.V1: "/v1"}


def traffic_app(
    gate: Callable[[], Gate], django: App, live: App | None = None, peer_port: Callable[[], int | None] = lambda: None
) -> App:
    """The application: traffic by exact path, Django for the admin and its static files, `live` for its WebSockets.

    On `peer_port` other replicas are served, and nobody else.
    """
    forwarded = ForwardedHttp.as_asgi(gate=gate, route=Route.CODEX)
    http: dict[tuple[str, str], App] = {
        ("GET", "/healthz"): document_app(health_of()),
        ("GET", "/readyz"): document_app(readiness_of(gate)),
        ("GET", OPENAPI): document_app(openapi_of()),
    }
    websocket: dict[str, App] = {}
    http["POST", "/v1/chat/completions"] = ChatHttp.as_asgi(gate=gate, route=Route.V1)
    for route, prefix in PREFIXES.items():
        http["POST", f"{prefix}/responses"] = ResponsesHttp.as_asgi(gate=gate, route=route)
        http["GET", f"{prefix}/models"] = document_app(models_of(gate, route))
        websocket[f"{prefix}/responses"] = ResponsesWebSocket.as_asgi(gate=gate, route=route)
    stored, followed = document_app(stored_of(gate)), StoredStreamHttp.as_asgi(gate=gate, route=Route.V1)
    http["GET", "/v1/usage"] = document_app(key_usage_of(gate))
    for path in ("/backend-api/wham/usage", "/api/codex/usage"):
        http["GET", path] = document_app(pool_usage_of(gate))
    for path in ("/backend-api/wham/accounts/check", "/api/codex/accounts/check"):
        http["GET", path] = document_app(account_check_of(gate))
    unknown, refused = document_app(not_found), document_app(wrong_method)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if is_forwarded(scope, peer_port()):
            taken = scope["type"] == "http" and (scope["method"], path) == ("POST", PATH)
            await (forwarded if taken else unknown)(scope, receive, send)
            return
        if scope["type"] == "websocket":
            admin = live if live is not None and path.startswith("/admin/") else unknown
            await websocket.get(path, admin)(scope, receive, send)
            return
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        known = http.get((method, path))
        if known is None and (path in ("/", "/admin") or path.startswith(("/admin/", "/static/"))):
            known = django
        operation = find_operation(scope["method"], path) if known is None else None
        if operation is not None:
            known = UnaryHttp.as_asgi(gate=gate, route=ROUTES[operation.mount], operation=operation)
        if known is None and path.startswith(PREFIX):
            known = followed if wants_stream(scope) else stored
        if known is None and (is_known_path(path) or any(each == path for _, each in http)):
            known = refused
        await (known or unknown)(scope, receive, send)

    return app
