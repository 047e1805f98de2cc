"""Whether a full request provably goes on where a response on a lane ended, so that only what is new need be sent.

A chain remembers the request and the items that its response returned, as digests. A later request extends it when
nothing but `input` differs, the old input and the returned items are a prefix of the new input, and every call in
what was returned is answered by what is new. The client's old input must come back byte for byte; returned items
may come back with their members in another order, or without the upstream's `status`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from gateway.protocol.body import Body
from gateway.protocol.bound import Bound
from gateway.protocol.members import UNREADABLE

# Members that say nothing about the response itself, or that the gateway sets.
_NOT_SETTINGS = frozenset(
    {"input", "previous_response_id", "client_metadata", "metadata", "stream", "type", "generate"}
)
# What an upstream adds to an item that clients may leave out when they send it back.
_LABELS = frozenset({"status"})
_CALLS = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}

_LIST = msgspec.json.Decoder(list[Raw])
_ITEM = msgspec.json.Decoder(dict[str, object])


@dataclass(frozen=True, slots=True)
class Chain:
    """What a lane holds: the settings, how many input items there were, and what came back.

    `calls` are the call ids that are still unanswered; `response_id` is what a continuation names.
    """

    response_id: str
    settings: bytes
    count: int
    items: bytes
    returned: tuple[bytes, ...]
    calls: frozenset[str]


def chain_of(body: Body, response_id: str, returned: Sequence[bytes]) -> Chain | None:
    """The chain after `body` was answered with the items `returned`; None when it cannot be gone on from."""
    texts, decoded = _texts(body), _decoded(returned)
    if texts is None or decoded is None:
        return None
    calls = frozenset(str(item.get("call_id")) for item in decoded if item.get("type") in _CALLS)
    items = _digest(texts)
    return Chain(response_id, _settings(body), len(texts), items, tuple(map(_returned_digest, decoded)), calls)


def new_items(chain: Chain, body: Body) -> list[Raw] | None:
    """The items of `body` that go on from `chain`; None unless the whole body provably extends it."""
    texts = _texts(body)
    start = chain.count + len(chain.returned)
    if texts is None or len(texts) <= start or Bound.UNPAIRED_CALL in body.bound:
        return None
    if _settings(body) != chain.settings or _digest(texts[: chain.count]) != chain.items:
        return None
    echoed, new = _decoded(texts[chain.count : start]), _decoded(texts[start:])
    if echoed is None or new is None or tuple(map(_returned_digest, echoed)) != chain.returned:
        return None
    return texts[start:] if _answers(new) >= chain.calls else None


def _texts(body: Body) -> list[Raw] | None:
    """The input items as text, if the body is one that may be continued: a list, not stored, not a delta."""
    if body.store is not False or body.previous_response_id is not None or body.conversation:
        return None
    text = body.fields.get("input")
    if text is None or not bytes(text).lstrip().startswith(b"["):
        return None
    return _LIST.decode(text)


def _decoded(texts: Sequence[Raw | bytes]) -> list[dict[str, object]] | None:
    """The items as objects; None when one of them is none, which nobody can go on from."""
    try:
        return [_ITEM.decode(text) for text in texts]
    except UNREADABLE:
        return None


def _settings(body: Body) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(body.fields.keys() - _NOT_SETTINGS):
        digest.update(b"%b\0%b\0" % (name.encode(), bytes(body.fields[name])))
    return digest.digest()


def _digest(texts: Sequence[Raw]) -> bytes:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text)
        digest.update(b"\0")
    return digest.digest()


def _returned_digest(item: dict[str, object]) -> bytes:
    kept = {name: value for name, value in item.items() if name not in _LABELS and value is not None}
    return hashlib.sha256(msgspec.json.encode(kept, order="deterministic")).digest()


def _answers(items: Sequence[dict[str, object]]) -> frozenset[str]:
    return frozenset(str(item.get("call_id")) for item in items if item.get("type") in _CALLS.values())
