"""In which form a chat wants its answer."""

from __future__ import annotations

from msgspec import Raw, Struct, field

from gateway.protocol.chat.fields import invalid, is_given


class TextFormat(Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    pass


class JsonSchema(Struct, forbid_unknown_fields=True):
    name: str
    schema: Raw = field(default_factory=Raw)
    description: str | None = None
    strict: bool | None = None


class SchemaFormat(Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    json_schema: JsonSchema


class ObjectFormat(Struct, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    pass


ResponseFormat = TextFormat | ObjectFormat | SchemaFormat


def format_of(wanted: ResponseFormat) -> dict[str, object]:
    """The form of the answer as a response takes it, for its `text.format`."""
    if isinstance(wanted, TextFormat):
        return {"type": "text"}
    if isinstance(wanted, ObjectFormat):
        return {"type": "json_object"}
    schema = wanted.json_schema
    if not is_given(schema.schema):
        raise invalid("response_format.json_schema.schema", "a response needs the schema itself")
    made: dict[str, object] = {"type": "json_schema", "name": schema.name, "schema": schema.schema}
    if schema.description is not None:
        made["description"] = schema.description
    if schema.strict is not None:
        made["strict"] = schema.strict
    return made
