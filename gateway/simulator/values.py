"""JSON objects as they come from outside: typed as what they are, narrowed where they are used."""

from __future__ import annotations

import msgspec

Json = dict[str, object]


def encode(value: object) -> bytes:
    """Compact JSON in UTF-8; characters outside ASCII stay as they are."""
    return msgspec.json.encode(value)


def decode_object(raw: bytes) -> Json:
    """The JSON object in `raw`; raises `ValueError` when it is no JSON or no object."""
    try:
        value: object = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"The body is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ValueError("The body is not a JSON object.")
    return value


def text(value: object) -> str:
    """`value` if it is a string, else the empty string."""
    return value if isinstance(value, str) else ""


def objects(value: object) -> list[Json]:
    """The objects in `value` if it is an array, else nothing."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
