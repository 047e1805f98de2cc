"""What one replica sends another: a client's request, signed as a whole. Pure.

The signature is an HMAC-SHA256 over method, path, times, ends, client and the digest of the body; the client's headers
travel in the body, so it covers them too. Its key is derived from the keys that seal the accounts' credentials, which
all replicas share. The client's own key is not sent: whoever signs has checked it, and names it by its number.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PATH = "/internal/turns"
PREFIX = "x-pointsman-"
SIGNATURE = f"{PREFIX}signature"
# Seconds that a request may be under way, and by which the clocks of two machines may differ.
WINDOW = 30.0
# Misdirected Request (RFC 9110): the replica has done nothing with the turn.
NOT_TAKEN = 421
MOST_NONCES = 100_000
# What is the client's own business with its connection, or with this gateway alone.
NOT_CARRIED = frozenset(
    {"authorization", "connection", "content-encoding", "content-length", "cookie", "expect", "host", "keep-alive"}
    | {"proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade"}
)


class NotSigned(Exception):
    """The request is from no replica, or not for this one; the message says why. Nothing was done with it."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """Who sends what to whom: replicas, the id of the client's key, the turn, and the client's kind of route."""

    origin: UUID
    target: UUID
    client: int
    turn: UUID
    route: str
    sent_at: float
    nonce: str
    digest: str

    def fields(self) -> dict[str, str]:
        """As headers, without the signature."""
        return {
            f"{PREFIX}origin": str(self.origin),
            f"{PREFIX}target": str(self.target),
            f"{PREFIX}client": str(self.client),
            f"{PREFIX}turn": str(self.turn),
            f"{PREFIX}route": self.route,
            f"{PREFIX}sent-at": f"{self.sent_at:.3f}",
            f"{PREFIX}nonce": self.nonce,
            f"{PREFIX}digest": self.digest,
        }


def signing_keys(secrets: Sequence[str]) -> list[bytes]:
    """A signing key for each of the replicas' shared secrets, in their order: the first signs, any of them verifies."""
    return [
        HKDF(algorithm=SHA256(), length=32, salt=None, info=b"pointsman forwarded turns").derive(secret.encode())
        for secret in secrets
    ]


def pack(headers: Sequence[tuple[str, str]], body: bytes) -> bytes:
    """The client's headers and body as one."""
    carried = [(name, value) for name, value in headers if name not in NOT_CARRIED and not name.startswith(PREFIX)]
    return msgspec.json.encode(carried) + b"\n" + body


def unpack(packed: bytes) -> tuple[list[tuple[str, str]], bytes]:
    """What `pack` was given; raises `NotSigned` for anything else."""
    head, _, body = packed.partition(b"\n")
    try:
        return msgspec.json.decode(head, type=list[tuple[str, str]]), body
    except msgspec.MsgspecError:
        raise NotSigned("the body is no forwarded request") from None


def digest(packed: bytes) -> str:
    return hashlib.sha256(packed).hexdigest()


def sign(key: bytes, envelope: Envelope) -> dict[str, str]:
    """The headers of a forwarded request, the signature among them."""
    fields = envelope.fields()
    return {**fields, SIGNATURE: _signature(key, fields)}


def _signature(key: bytes, fields: Mapping[str, str]) -> str:
    text = "\n".join(["POST", PATH, *(f"{name}:{fields[name]}" for name in sorted(fields))])
    return hmac.digest(key, text.encode("utf-8", "surrogateescape"), "sha256").hex()


class Verifier:
    """Tells requests of other replicas from all others; each is accepted once."""

    def __init__(self, keys: Sequence[bytes], replica: UUID) -> None:
        self._keys = keys
        self._replica = replica
        self._nonces: OrderedDict[str, float] = OrderedDict()

    def verify(self, headers: Mapping[str, str], now: float) -> Envelope:
        """Who sent it, from the headers alone; the body must have the envelope's `digest`. Raises `NotSigned`."""
        signature = headers.get(SIGNATURE, "")
        names = Envelope(UUID(int=0), UUID(int=0), 0, UUID(int=0), "", 0.0, "", "").fields()
        fields = {name: headers.get(name, "") for name in names}
        # Compared with every key, so that time tells nothing.
        fits = [hmac.compare_digest(_signature(key, fields).encode(), signature.encode()) for key in self._keys]
        if not any(fits):
            raise NotSigned("the signature is wrong")
        envelope = _read(fields)
        if envelope.target != self._replica:
            raise NotSigned("it is for another replica")
        if abs(now - envelope.sent_at) > WINDOW:
            raise NotSigned("it was sent too long ago, or the clocks differ")
        self._use(envelope.nonce, now)
        return envelope

    def _use(self, nonce: str, now: float) -> None:
        while self._nonces and next(iter(self._nonces.values())) < now - 2 * WINDOW:
            self._nonces.popitem(last=False)
        if nonce in self._nonces or len(self._nonces) >= MOST_NONCES:
            raise NotSigned("it was sent before")
        self._nonces[nonce] = now


def _read(fields: Mapping[str, str]) -> Envelope:
    """The envelope that a replica wrote; its signature has been checked."""
    return Envelope(
        origin=UUID(fields[f"{PREFIX}origin"]),
        target=UUID(fields[f"{PREFIX}target"]),
        client=int(fields[f"{PREFIX}client"]),
        turn=UUID(fields[f"{PREFIX}turn"]),
        route=fields[f"{PREFIX}route"],
        sent_at=float(fields[f"{PREFIX}sent-at"]),
        nonce=fields[f"{PREFIX}nonce"],
        digest=fields[f"{PREFIX}digest"],
    )
