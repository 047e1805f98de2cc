"""Lists of models, in the two shapes that clients know: the Codex catalogue and the list of the OpenAI API.

An upstream's list comes in either shape. Entries keep what they hold; what would spoil the list for its client is left
out, since the Codex client throws the whole catalogue away for one entry that it cannot read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec
from msgspec import Raw

from gateway.protocol.members import UNREADABLE, join_members, members_of, text_of, value_of

_ENTRIES = msgspec.json.Decoder(list[Raw])


class Model(NamedTuple):
    """One entry: the name that clients ask for, and the members it came with."""

    name: str
    members: Mapping[str, Raw]


class Renamed(NamedTuple):
    """Another name for a model in a list, and its effort if it has one."""

    name: str
    model: str
    effort: str


def read_models(body: bytes) -> list[Model]:
    """The models in an upstream's list of either shape; what is no entry is left out."""
    document = members_of(body)
    found: dict[str, Model] = {}
    for text in (*_items(document.get("models")), *_items(document.get("data"))):
        members = members_of(text)
        name = text_of(members.get("slug")) or text_of(members.get("id"))
        if name:
            found.setdefault(name, Model(name, members))
    return list(found.values())


def with_names(models: Iterable[Model], names: Iterable[Renamed]) -> list[Model]:
    """`models`, and beside each of them the other names it has; a name of its own only sets its default effort."""
    known = {model.name: model for model in models}
    for renamed in names:
        model = known.get(renamed.model)
        if model is not None:
            known[renamed.name] = Model(renamed.name, _renamed(model, renamed))
    return list(known.values())


def as_catalogue(models: Iterable[Model]) -> bytes:
    """The Codex catalogue of those that its client can read."""
    entries = [join_members(model.members) for model in models if is_readable(model)]
    return b'{"models":[' + b",".join(entries) + b"]}"


def as_list(models: Iterable[Model]) -> bytes:
    """The list of the OpenAI API; models that a catalogue hides are left out."""
    shown = [model for model in models if text_of(model.members.get("visibility")) in (None, "list")]
    return b'{"object":"list","data":[' + b",".join(map(_listed, shown)) + b"]}"


def is_readable(model: Model) -> bool:
    """Whether the Codex client can read the entry: it has all members that the client requires, of the right type."""
    values = {name: value_of(model.members.get(name)) for name in _REQUIRED}
    if not all(fits(values[name]) for name, fits in _REQUIRED.items()):
        return False
    messages = value_of(model.members.get("model_messages"))
    return isinstance(value_of(model.members.get("base_instructions")), str) or isinstance(messages, dict)


def _is(*kinds: type) -> Callable[[object], bool]:
    return lambda value: type(value) in kinds


def _is_truncation(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("mode"), str) and type(value.get("limit")) is int


def _are_levels(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) and "effort" in each for each in value)


# As the client has it in version 0.171.
_REQUIRED: Mapping[str, Callable[[object], bool]] = {
    "slug": _is(str),
    "display_name": _is(str),
    "supported_reasoning_levels": _are_levels,
    "shell_type": {"unified_exec", "shell_command", "default", "local", "disabled"}.__contains__,
    "visibility": {"list", "hide", "none"}.__contains__,
    "supported_in_api": _is(bool),
    "priority": _is(int),
    "support_verbosity": _is(bool),
    "truncation_policy": _is_truncation,
    "experimental_supported_tools": _is(list),
}


def _items(text: Raw | None) -> list[Raw]:
    try:
        return [] if text is None else _ENTRIES.decode(text)
    except UNREADABLE:
        return []


def _renamed(model: Model, renamed: Renamed) -> dict[str, Raw]:
    changes: dict[str, str] = {}
    for name in ("slug", "id"):
        if name in model.members:
            changes[name] = renamed.name
    if renamed.name != renamed.model and "display_name" in model.members:
        changes["display_name"] = renamed.name
    if renamed.effort and "supported_reasoning_levels" in model.members:
        changes["default_reasoning_level"] = renamed.effort
    return {**model.members, **{name: Raw(msgspec.json.encode(value)) for name, value in changes.items()}}


def _listed(model: Model) -> bytes:
    created, owner = value_of(model.members.get("created")), text_of(model.members.get("owned_by"))
    entry = {
        "id": model.name,
        "object": "model",
        "created": created if type(created) is int else 0,
        "owned_by": owner or "upstream",
    }
    return msgspec.json.encode(entry)
