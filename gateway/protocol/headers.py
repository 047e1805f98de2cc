"""HTTP headers that an upstream sends as JSON inside an event, or with an answer.

Some are handed on to clients, so whatever cannot stand in a header must end here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Raw

from gateway.protocol.members import members_of, value_of

TURN_STATE = "x-codex-turn-state"
MODEL = "openai-model"

MAX_HEADERS = 100
MAX_HEADER_VALUE = 8 * 1024

# RFC 9110 sections 5.1 and 5.5, without bytes beyond ASCII, which clients read in different ways.
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_VALUE = re.compile(r"[\t -~]*")


def clean_headers(pairs: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """The pairs that may stand in an HTTP header, with lower-case names; at most MAX_HEADERS of them."""
    headers: dict[str, str] = {}
    for name, value in pairs:
        if value is None or len(value) > MAX_HEADER_VALUE:
            continue
        if _NAME.fullmatch(name) and _VALUE.fullmatch(value):
            headers[name.lower()] = value
        if len(headers) == MAX_HEADERS:
            break
    return headers


def headers_in(text: Raw | None) -> dict[str, str]:
    """The members of a JSON object as headers, or none if it is missing or is not an object."""
    return clean_headers((name, header_text(value)) for name, value in members_of(text).items())


def header_text(text: Raw | None) -> str | None:
    """A JSON string as it is, a number or truth value as it is written, None for anything else."""
    value = value_of(text)
    if isinstance(value, str):
        return value
    if text is None or not isinstance(value, bool | int | float):
        return None
    return bytes(text).decode()
