"""Values that fit a schema."""

from __future__ import annotations

import pytest

from gateway.simulator.sample import sample


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, "text"),
        ({"type": ["integer", "null"]}, 1),
        ({"type": "array", "items": {"type": "boolean"}}, [True]),
        ({"enum": ["a", "b"]}, "a"),
        ({"const": 5}, 5),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, 1.5),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "string"}}}, "text"),
        ({"type": "object", "properties": {"a": {"type": "null"}}}, {"a": None}),
        ({"$ref": "#/nowhere"}, {}),
        ({}, {}),
        (None, {}),
    ],
)
def test_a_schema_has_a_smallest_value(schema: object, value: object) -> None:
    assert sample(schema) == value


def test_a_schema_that_refers_to_itself_comes_to_an_end() -> None:
    assert sample({"type": "object", "properties": {"again": {"$ref": "#"}}})
