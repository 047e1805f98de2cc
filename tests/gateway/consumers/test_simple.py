"""Requests without a body worth reading."""

from __future__ import annotations

import asyncio

import pytest

from gateway.consumers.base import Scope
from gateway.consumers.simple import Document, document_app, json_document, not_found
from tests.gateway.consumers.asgi import HttpClient, SocketClient


def scope(method: str = "GET", path: str = "/x") -> Scope:
    return {"type": "http", "method": method, "path": path, "headers": []}


async def say_hello(scope: Scope) -> Document:
    return Document(201, b'"hello"', {"etag": "1"})


async def test_a_document_is_sent_with_its_length():
    client = HttpClient(document_app(say_hello), scope())
    await client.ended()
    assert (client.status, client.body, client.complete) == (201, b'"hello"', True)
    assert client.headers == {"etag": "1", "content-type": "application/json", "content-length": "7"}


async def test_head_gets_the_same_headers_and_no_body():
    client = HttpClient(document_app(say_hello), scope("HEAD"))
    await client.ended()
    assert (client.body, client.headers["content-length"], client.complete) == (b"", "7", True)


async def test_a_client_that_leaves_ends_the_work():
    ended = asyncio.Event()

    async def never(scope: Scope) -> Document:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()
        raise AssertionError("never reached")

    client = HttpClient(document_app(never), scope())
    await asyncio.sleep(0)
    client.leave()
    await client.ended()
    async with asyncio.timeout(1):
        await ended.wait()
    assert client.sent == []


async def test_a_client_that_left_before_the_answer_is_no_error():
    client = HttpClient(document_app(say_hello), scope())
    client.left = True
    await client.ended()


async def test_a_websocket_has_no_document():
    client = SocketClient(document_app(say_hello), {"type": "websocket", "path": "/x", "headers": []})
    client.say({"type": "websocket.connect"})
    await client.ended()
    assert client.sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize("path", ["/elsewhere", "/v1/responses/", "/\u20ac"])
async def test_an_unknown_path_is_a_404_that_says_what_there_is(path: str):
    document = await not_found(scope(path=path))
    assert document.status == 404
    assert b"/v1/responses" in document.body
    assert b'"code":"not_found"' in document.body


def test_any_content_is_a_json_document():
    assert json_document(503, {"ready": False}) == Document(503, b'{"ready":false}')
