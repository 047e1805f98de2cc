"""What has to change in a body before an account gets it; nothing else is touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from accounts.states import Kind
from gateway.protocol.body import Body, as_frame, as_http, parse_body, with_fields, without_item_ids
from gateway.turns.request import TurnRequest
from gateway.upstream.headers import TURN_STATE


@dataclass(frozen=True, slots=True)
class Delta:
    """A continuation made by the gateway: the response that a lane holds, and what is new since."""

    response_id: str
    items: Sequence[Raw]


def payload(request: TurnRequest, kind: Kind, *, moved: bool, on_lane: bool, delta: Delta | None = None) -> bytes:
    """What is sent to an account of `kind`: a text frame for a lane, else a request body.

    `moved` says that another account carried the conversation before.
    """
    body = request.body
    if moved:
        # Item ids are labels of the account that gave them; a call is known by its call_id.
        body = parse_body(without_item_ids(body))
    changes = dict[str, object]()
    if kind is Kind.CODEX and body.store is None:
        # That backend stores nothing, and refuses a request that leaves the default.
        changes["store"] = False
    if not body.stream:
        changes["stream"] = True
    turn_state = None if moved else request.turn_state
    if (body.turn_state is not None and turn_state is None) or (on_lane and turn_state != body.turn_state):
        changes["client_metadata"] = _with_turn_state(body, turn_state)
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
