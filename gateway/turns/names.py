"""Names that clients use for models: aliases, and the effort that belongs to them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from gateway.errors import ModelNotAllowed
from gateway.keys import KeySnapshot
from gateway.protocol.body import Body, parse_body, with_fields
from gateway.protocol.members import members_of, text_of


@dataclass(frozen=True, slots=True)
class Alias:
    """A name for `model` with an effort, for the key with the id `key` or, where that is None, for all.

    A name that is the model's own gives its effort to requests that say none; any other name decides the effort.
    """

    name: str
    model: str
    effort: str = ""
    key: int | None = None

    @property
    def is_default(self) -> bool:
        """Whether it is only the default effort of a model."""
        return self.name == self.model


class Named(NamedTuple):
    """A body with the upstream's name of the model in it; `asked` is the alias that stood there, or empty."""

    body: Body
    asked: str


class Names:
    """All aliases, in memory; a loop replaces them when they change."""

    def __init__(self, aliases: Iterable[Alias] = ()) -> None:
        self.replace(aliases)

    def replace(self, aliases: Iterable[Alias]) -> None:
        """Know exactly these from now on."""
        self._aliases = {(alias.key, alias.name): alias for alias in aliases}

    def find(self, key: int, name: str) -> Alias | None:
        """What `name` means for the key; its own alias goes before one for all."""
        return self._aliases.get((key, name)) or self._aliases.get((None, name))

    def of(self, key: KeySnapshot) -> list[Alias]:
        """The aliases that the key may use, by name."""
        names = sorted({name for owner, name in self._aliases if owner in (None, key.id)})
        found = (self.find(key.id, name) for name in names)
        return [alias for alias in found if alias is not None and key.may_use(alias.model)]

    def resolve(self, key: KeySnapshot, body: Body) -> Named:
        """`body` as it may be sent for `key`; raises `ModelNotAllowed`, also for a body that names no model."""
        alias = self.find(key.id, body.model or "")
        model = body.model if alias is None else alias.model
        if not key.may_use(model or ""):
            raise ModelNotAllowed(f"This key is not open for the model {model or '(none)'!r}.", param="model")
        if alias is None:
            return Named(body, "")
        changes = _changes(alias, body)
        return Named(
            parse_body(with_fields(body, changes)) if changes else body, "" if alias.is_default else alias.name
        )


def _changes(alias: Alias, body: Body) -> dict[str, object]:
    changes: dict[str, object] = {} if alias.is_default else {"model": alias.model}
    reasoning = members_of(body.fields.get("reasoning"))
    told = text_of(reasoning.get("effort"))
    if alias.effort and alias.effort != told and not (alias.is_default and told):
        changes["reasoning"] = reasoning | {"effort": msgspec.Raw(msgspec.json.encode(alias.effort))}
    return changes
