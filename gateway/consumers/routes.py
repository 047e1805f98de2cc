"""Which path goes to which consumer. Unknown paths get a JSON 404; the admin is Django's."""

from __future__ import annotations

from collections.abc import Callable

from gateway.consumers.base import App, Gate, Receive, Scope, Send
from gateway.consumers.health import health_of, readiness_of
from gateway.consumers.http import ResponsesHttp
from gateway.consumers.models import models_of
from gateway.consumers.simple import document_app, not_found, wrong_method
from gateway.consumers.websocket import ResponsesWebSocket
from gateway.turns.request import Route

PREFIXES = {Route.CODEX: "/backend-api/codex", Route.V1: "/v1"}


def traffic_app(gate: Callable[[], Gate], django: App) -> App:
    """The application: traffic by exact path, Django for the admin and its static files."""
    http: dict[tuple[str, str], App] = {
        ("GET", "/healthz"): document_app(health_of()),
        ("GET", "/readyz"): document_app(readiness_of(gate)),
    }
    websocket: dict[str, App] = {}
    for route, prefix in PREFIXES.items():
        http["POST", f"{prefix}/responses"] = ResponsesHttp.as_asgi(gate=gate, route=route)
        http["GET", f"{prefix}/models"] = document_app(models_of(gate, route))
        websocket[f"{prefix}/responses"] = ResponsesWebSocket.as_asgi(gate=gate, route=route)
    unknown, refused = document_app(not_found), document_app(wrong_method)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if scope["type"] == "websocket":
            await websocket.get(path, unknown)(scope, receive, send)
            return
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        known = http.get((method, path))
        if known is None and (path in ("/", "/admin") or path.startswith(("/admin/", "/static/"))):
            known = django
        if known is None and any(each == path for _, each in http):
            known = refused
        await (known or unknown)(scope, receive, send)

    return app
