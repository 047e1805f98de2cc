"""Which path goes where."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.consumers.base import Receive, Scope, Send
from gateway.consumers.routes import traffic_app
from tests.gateway.consumers.asgi import CODEX, V1, Edge, HttpClient, SocketClient, body, edge, events


@pytest.fixture
async def made() -> AsyncIterator[Edge]:
    async with edge() as made:
        yield made


@pytest.mark.parametrize("path", [CODEX, V1])
async def test_turns_are_posted_to_both_roots(made: Edge, path: str):
    answer = await made.answer(path, body())
    assert events(answer.body)[-1]["type"] == "response.completed"


@pytest.mark.parametrize("path", [CODEX, V1])
async def test_turns_are_carried_on_websockets_of_both_roots(made: Edge, path: str):
    client = await made.socket(path)
    assert client.sent[0]["type"] == "websocket.accept"
    client.leave()
    await client.ended()


@pytest.mark.parametrize("path", ["/backend-api/codex/models", "/v1/models", "/healthz", "/readyz"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_documents_are_read_with_get_and_asked_about_with_head(made: Edge, path: str, method: str):
    answer = await made.answer(path, method=method)
    assert answer.status == 200
    assert int(answer.headers["content-length"]) > 0
    assert (answer.body == b"") == (method == "HEAD")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", CODEX),
        ("HEAD", CODEX),
        ("PUT", V1),
        ("DELETE", V1),
        ("POST", "/v1/models"),
        ("POST", "/healthz"),
    ],
)
async def test_a_known_path_says_that_it_does_not_take_a_method(made: Edge, method: str, path: str):
    answer = await made.answer(path, method=method, content={})
    assert answer.status == 405
    if method != "HEAD":
        assert answer.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/responses/resp_1/other"),
        ("POST", "/v1/responses/"),
        ("POST", "/V1/responses"),
        ("POST", "/responses"),
        ("POST", "/backend-api/codex/responses/expand"),
        ("GET", "/adminx"),
        ("GET", "/v1/../admin/"),
    ],
)
async def test_anything_else_is_a_json_404(made: Edge, method: str, path: str):
    answer = await made.answer(path, method=method, content={})
    assert answer.status == 404
    assert answer.headers["content-type"] == "application/json"
    if method != "HEAD":
        assert answer.json()["error"]["code"] == "not_found"


async def test_a_websocket_elsewhere_is_refused(made: Edge):
    client = SocketClient(made.app, made.scope("websocket", "/v1/realtime"))
    client.say({"type": "websocket.connect"})
    await client.ended()
    assert client.sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize("path", ["/", "/admin", "/admin/", "/admin/gateway/turn/", "/static/admin/base.css"])
async def test_the_admin_and_its_files_are_djangos(made: Edge, path: str):
    asked: list[str] = []

    async def django(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope["path"])

    app = traffic_app(lambda: made.runtime.gate, django)
    for method in ("GET", "POST"):
        await HttpClient(app, {"type": "http", "method": method, "path": path, "headers": []}).ended()
    assert asked == [path, path]
