"""`/v1/openapi.json`: what is served under `/v1`, for programs. It needs no key, as it is the same everywhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.consumers.base import Scope
from gateway.consumers.simple import Document
from gateway.protocol.openapi import openapi_document
from gateway.version import VERSION

PATH = "/v1/openapi.json"


def openapi_of() -> Callable[[Scope], Awaitable[Document]]:
    page = Document(200, openapi_document(VERSION))

    async def respond(scope: Scope) -> Document:
        return page

    return respond
