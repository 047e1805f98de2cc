"""The form in which a chat wants its answer."""

from __future__ import annotations

import pytest

from tests.gateway.protocol.chat.asking import Json, refusal, response

SCHEMA: Json = {"type": "object", "properties": {"city": {"type": "string"}}}


@pytest.mark.parametrize("kind", ["text", "json_object"])
def test_plain_formats_are_the_same(kind: str):
    assert response(response_format={"type": kind})["text"] == {"format": {"type": kind}}


def test_a_schema_stands_beside_its_name():
    given = {"name": "place", "schema": SCHEMA, "strict": True, "description": "A place."}
    assert response(response_format={"type": "json_schema", "json_schema": given})["text"]["format"] == {
        "type": "json_schema",
        **given,
    }
    told = response(response_format={"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}})
    assert told["text"]["format"].keys() == {"type", "name", "schema"}


def test_a_format_without_its_schema_is_refused():
    assert refusal(response_format={"type": "json_schema", "json_schema": {"name": "place"}}) == (
        "invalid_value",
        "response_format.json_schema.schema",
    )
