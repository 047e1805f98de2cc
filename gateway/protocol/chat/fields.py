"""Reading a chat request strictly: what is not understood is an error that names its place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec import Raw

from gateway.errors import InvalidBody
from gateway.protocol.members import UNREADABLE

T = TypeVar("T")

_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`$", re.DOTALL)


def read(members: Mapping[str, Raw], name: str, decoder: msgspec.json.Decoder[T]) -> T | None:
    """The decoded member, or None if it is absent or null; raises `InvalidBody` with its place as `param`."""
    text = members.get(name)
    return None if text is None or not is_given(text) else decode(text, decoder, name)


def decode(text: Raw, decoder: msgspec.json.Decoder[T], where: str) -> T:
    """The decoded value; raises `InvalidBody` whose `param` is `where` and the way from there."""
    try:
        return decoder.decode(text)
    except UNREADABLE as error:
        raise _misfit(error, where) from error


def is_given(text: Raw) -> bool:
    """Whether a member holds anything; null counts as absent."""
    return bytes(text) not in (b"", b"null")


def unsupported(param: str, why: str) -> InvalidBody:
    """The error for a parameter that is understood and cannot be carried."""
    return InvalidBody(f"The parameter `{param}` cannot be carried: {why}.", code="unsupported_parameter", param=param)


def invalid(param: str, why: str) -> InvalidBody:
    """The error for a parameter whose value is wrong."""
    return InvalidBody(f"The parameter `{param}` is not usable: {why}.", code="invalid_value", param=param)


def unknown(param: str) -> InvalidBody:
    """The error for a parameter that the gateway has never heard of."""
    return InvalidBody(
        f"The parameter `{param}` is unknown here, so it cannot be carried; leave it out.",
        code="unknown_parameter",
        param=param,
    )


def _misfit(error: Exception, where: str) -> InvalidBody:
    found = _PLACE.match(str(error))
    what, path = (found["what"], found["path"] or "") if found is not None else (str(error), "")
    param = where + path
    stranger = _UNKNOWN.match(what)
    if stranger is not None:
        return unknown(f"{param}.{stranger['name'][:100]}")
    missing = _MISSING.match(what)
    if missing is not None:
        return invalid(f"{param}.{missing['name']}", "it is missing")
    return invalid(param, what[:1].lower() + what[1:200])
