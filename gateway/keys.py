"""Keys of this gateway: `pm_<lookup>_<secret>`, of which only the lookup part and a hash of the secret are stored.

The secret has 256 random bits, so a plain SHA-256 is enough: there is nothing to guess, and checking costs
microseconds per request.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.metering.limits import NO_LIMITS, KeyLimits

PREFIX = "pm"
LOOKUP_BYTES = 5


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made. `text` is shown once; `lookup` and `digest` are stored."""

    text: str
    lookup: str
    digest: str

    def __repr__(self) -> str:
        return f"<NewKey {self.lookup}>"


@dataclass(frozen=True, slots=True)
class KeySnapshot:
    """A stored key as the traffic code knows it.

    `accounts` None and empty `models` allow all; `migrates` None leaves that to the setting.
    """

    id: int
    name: str
    lookup: str
    digest: str
    enabled: bool = True
    accounts: frozenset[int] | None = None
    models: tuple[str, ...] = ()
    limits: KeyLimits = NO_LIMITS
    migrates: bool | None = None

    def may_use(self, model: str) -> bool:
        """Whether the key is open for `model`, by its upstream name."""
        return not self.models or any(_is_like(model, allowed) for allowed in self.models)


def _is_like(model: str, allowed: str) -> bool:
    """A name that ends in `*` stands for all that begin like it."""
    return model.startswith(allowed[:-1]) if allowed.endswith("*") else model == allowed


def new_key() -> NewKey:
    """Make a key. Store its lookup part and digest, hand its text to the client, and keep the text nowhere."""
    lookup = secrets.token_hex(LOOKUP_BYTES)
    secret = secrets.token_urlsafe(32)
    return NewKey(f"{PREFIX}_{lookup}_{secret}", lookup, digest(secret))


def digest(secret: str) -> str:
    """What is stored of a key's secret part."""
    return hashlib.sha256(secret.encode()).hexdigest()


class KeyRing:
    """The enabled keys, in memory; a loop replaces them when they change."""

    def __init__(self, keys: Sequence[KeySnapshot] = ()) -> None:
        self.replace(keys)

    def replace(self, keys: Sequence[KeySnapshot]) -> None:
        """Know exactly `keys` from now on."""
        self._keys = {key.lookup: key for key in keys if key.enabled}
        self._by_id = {key.id: key for key in self._keys.values()}

    def by_id(self, number: int) -> KeySnapshot | None:
        """The key with this id, for a client that another replica has authenticated."""
        return self._by_id.get(number)

    def find(self, text: str) -> KeySnapshot | None:
        """The key that `text` is, or None. The secret is compared in constant time."""
        prefix, _, rest = text.partition("_")
        lookup, _, secret = rest.partition("_")
        key = self._keys.get(lookup)
        if prefix != PREFIX or key is None:
            return None
        return key if hmac.compare_digest(key.digest, digest(secret)) else None

    def from_authorization(self, header: str | None) -> KeySnapshot | None:
        """The key in an `Authorization: Bearer …` header (RFC 6750), or None."""
        scheme, _, text = (header or "").partition(" ")
        return self.find(text.strip()) if scheme.lower() == "bearer" else None
