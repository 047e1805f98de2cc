"""The smallest value that a JSON schema allows, as far as the everyday keywords go. Pure."""

from __future__ import annotations

from gateway.simulator.values import Json, text

# Deeper schemas refer to themselves.
DEEPEST = 8
_PLAIN: dict[str, object] = {"string": "text", "integer": 1, "number": 1.5, "boolean": True, "null": None}


def sample(schema: object, root: Json | None = None, depth: int = 0) -> object:
    """A value for `schema`; an empty object where the schema says nothing."""
    if not isinstance(schema, dict) or depth > DEEPEST:
        return {}
    root = schema if root is None else root
    if "const" in schema:
        return schema["const"]
    for name in ("enum", "anyOf", "oneOf", "allOf"):
        options = schema.get(name)
        if isinstance(options, list) and options:
            return options[0] if name == "enum" else sample(options[0], root, depth + 1)
    if "$ref" in schema:
        return sample(_referred(text(schema["$ref"]), root), root, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    if kind == "array":
        return [sample(schema.get("items"), root, depth + 1)]
    if isinstance(kind, str) and kind in _PLAIN:
        return _PLAIN[kind]
    members = schema.get("properties")
    return {name: sample(each, root, depth + 1) for name, each in members.items()} if isinstance(members, dict) else {}


def _referred(reference: str, root: Json) -> object:
    """What `#/$defs/name` stands for."""
    found: object = root
    for name in reference.removeprefix("#/").split("/"):
        found = found.get(name) if isinstance(found, dict) else None
    return found
