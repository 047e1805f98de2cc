"""The published document describes what the gateway reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.protocol.chat.request import CARRIED
from gateway.protocol.openapi import openapi_document

DOCUMENT: dict[str, Any] = json.loads(openapi_document("1.2.3"))


def references(value: object) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def test_everything_that_it_refers_to_is_there():
    schemas = DOCUMENT["components"]["schemas"]
    assert references(DOCUMENT) <= {f"#/components/schemas/{name}" for name in schemas}
    assert DOCUMENT["info"]["version"] == "1.2.3"


def test_a_chat_takes_the_parameters_that_are_carried_and_no_others():
    request = DOCUMENT["components"]["schemas"]["ChatRequest"]
    assert request["properties"].keys() == CARRIED
    assert request["additionalProperties"] is False


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
def test_what_streams_says_so(path: str):
    answers = DOCUMENT["paths"][path]["post"]["responses"]
    assert answers["200"]["content"].keys() == {"application/json", "text/event-stream"}
    assert answers["default"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Error"}
