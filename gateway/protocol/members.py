"""JSON objects as members whose values stay text.

A body or an event may hold megabytes that the gateway only carries. Here an object is split into its members
without decoding their values, and put together again without encoding them, so that what nobody touched
leaves with the bytes it came with.

The readers below are for what an upstream sent: they never raise, and give "nothing" for a value that is
missing or not of the wanted type, because an odd field must not cost a client its response. Bodies of clients
are read strictly, in `gateway/protocol/body.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import islice

import msgspec
from msgspec import Raw

UNREADABLE = (msgspec.DecodeError, RecursionError)
"""What the JSON decoder raises for text that is not JSON, not of the wanted type, or nested too deeply."""

# What a 64-bit column and a double can both hold exactly; a larger token count is not a count.
_MAX_COUNT = 2**53

_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_LIST = msgspec.json.Decoder(list[Raw])
_NAME = re.compile(rb'[ \t\r\n]*("[^"\\]*+(?:\\.[^"\\]*+)*+")[ \t\r\n]*:[ \t\r\n]*')
_MARK_OR_STRING = re.compile(rb'[,\[{]|"[^"\\]*+(?:\\.[^"\\]*+)*+"')
_QUOTE = ord('"')
_SEPARATOR = re.compile(rb"[ \t\r\n]*[,}]")


def split_members(text: bytes | Raw) -> dict[str, Raw]:
    """The members of the JSON object `text`, in order, the last of a repeated name winning.

    Raises `msgspec.ValidationError` if `text` is not an object, `msgspec.DecodeError` if it is not JSON and
    `RecursionError` if it is nested too deeply. UTF-8 inside the values is not checked.
    """
    return _OBJECT.decode(text)


def join_members(members: Mapping[str, Raw | bytes]) -> bytes:
    """One JSON object of `members`, whose values must be JSON text and are copied as they are."""
    parts: list[bytes | Raw] = []
    for name, value in members.items():
        parts += (b",", msgspec.json.encode(name), b":", value)
    parts[:1] = [b"{"]
    parts.append(b"}")
    return b"".join(parts)


def has_repeated_name(text: bytes, members: Mapping[str, Raw]) -> bool:
    """Whether a name occurs twice in the object `text`, given its `members` as `split_members` read them.

    RFC 8259 section 4 leaves the meaning of such an object open: two parsers may read two different requests.
    """
    if len(text) == _compact_length(members):
        return False
    position = text.index(b"{") + 1
    seen = 0
    while (match := _NAME.match(text, position)) is not None:
        value = bytes(members[msgspec.json.decode(match[1])])
        separator = _SEPARATOR.match(text, match.end() + len(value))
        if not text.startswith(value, match.end()) or separator is None:
            # The value is not the one that won, so the name comes again.
            return True
        position = separator.end()
        seen += 1
    return seen != len(members)


def has_more_values(text: bytes, limit: int) -> bool:
    """Whether valid JSON text holds more than about `limit` values, so that decoding it is out of proportion.

    Three bytes of text can become a hundred bytes of objects, and microseconds of work.
    """
    if len(text) <= limit or sum(text.count(mark) for mark in (b",", b"[", b"{")) <= limit:
        return False
    # Most such marks stand in strings, where they cost nothing, so only now is it worth to tell them apart.
    marks = (match for match in _MARK_OR_STRING.finditer(text) if text[match.start()] != _QUOTE)
    return next(islice(marks, limit, None), None) is not None


def _compact_length(members: Mapping[str, Raw]) -> int:
    """Bytes of the shortest text of these members: any repeated name or white space makes a text longer."""
    pairs = sum(len(msgspec.json.encode(name)) + memoryview(value).nbytes for name, value in members.items())
    return max(2, pairs + 2 * len(members) + 1)


def members_of(text: bytes | Raw | None) -> dict[str, Raw]:
    """The members of a JSON object, or none at all if `text` is missing or is not an object."""
    if text is None:
        return {}
    try:
        return _OBJECT.decode(text)
    except UNREADABLE:
        return {}


def list_of(text: Raw | None) -> list[Raw]:
    """The elements of a JSON array, or none at all if `text` is missing or is not an array."""
    if text is None:
        return []
    try:
        return _LIST.decode(text)
    except UNREADABLE:
        return []


def value_of(text: Raw | None) -> object:
    """The decoded value, or None if it is missing, null or unreadable."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except UNREADABLE:
        return None


def text_of(text: Raw | None) -> str | None:
    """The string, or None for anything else."""
    value = value_of(text)
    return value if isinstance(value, str) else None


def number_of(text: Raw | None) -> float | None:
    """The finite number, also one written as a string, or None for anything else."""
    value = value_of(text)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def count_of(text: Raw | None) -> int:
    """The whole number from 0 to 2**53, or 0 for anything else."""
    number = number_of(text)
    if number is None or not number.is_integer() or not 0 <= number <= _MAX_COUNT:
        return 0
    return int(number)
