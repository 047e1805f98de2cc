"""What has to change in a body before an account gets it; nothing else is touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
from msgspec import Raw

from accounts.registry import AccountSnapshot
from accounts.states import Kind
from gateway.protocol.body import Body, as_frame, as_http, parse_body, with_fields, without_item_ids
from gateway.protocol.headers import TURN_STATE
from gateway.turns.ties import Tie


@dataclass(frozen=True, slots=True)
class Delta:
    """A continuation made by the gateway: the response that a lane holds, and what is new since."""

    response_id: str
    items: Sequence[Raw]


class Place(Protocol):
    """Where a request goes, and what of it: `tie` holds the body, `turn_state` is what the account may be shown."""

    @property
    def account(self) -> AccountSnapshot: ...
    @property
    def on_lane(self) -> bool: ...
    @property
    def tie(self) -> Tie: ...
    @property
    def moved(self) -> bool: ...
    @property
    def turn_state(self) -> str | None: ...


def unary_payload(place: Place) -> bytes:
    """What is sent of a request that is passed through: its body as it came, but for labels of another account."""
    body = place.tie.body
    return without_item_ids(body) if place.moved else body.raw


def payload(place: Place, delta: Delta | None = None) -> bytes:
    """What is sent: a text frame for a lane, else a request body."""
    body, on_lane = place.tie.body, place.on_lane
    if place.moved:
        # Item ids are labels of the account that gave them; a call is known by its call_id.
        body = parse_body(without_item_ids(body))
    changes = dict[str, object]()
    if place.account.kind is Kind.CODEX and body.store is None:
        # That backend stores nothing, and refuses a request that leaves the default.
        changes["store"] = False
    if not body.stream:
        changes["stream"] = True
    # On a lane it travels in the body; over HTTP the body may hold it, and then must not if it is another account's.
    if place.turn_state != body.turn_state and (on_lane or body.turn_state is not None):
        changes["client_metadata"] = _with_turn_state(body, place.turn_state)
    if delta is not None:
        changes["previous_response_id"] = delta.response_id
        changes["input"] = delta.items
    if not changes:
        return as_frame(body) if on_lane else as_http(body)
    return with_fields(body, changes | {"type": "response.create" if on_lane else None})


def _with_turn_state(body: Body, turn_state: str | None) -> dict[str, msgspec.Raw]:
    """On a lane turn state travels inside the body, since one handshake serves many requests; None takes it out."""
    known = body.fields.get("client_metadata")
    metadata = None if known is None else msgspec.json.decode(known, type=dict[str, msgspec.Raw] | None)
    kept = {name: value for name, value in (metadata or {}).items() if name != TURN_STATE}
    return kept if turn_state is None else kept | {TURN_STATE: msgspec.Raw(msgspec.json.encode(turn_state))}
