"""Requests and records of turns, made without a client."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping

from gateway.clock import Clock
from gateway.keys import KeySnapshot
from gateway.protocol.body import parse_body
from gateway.turns.record import TurnRecord
from gateway.turns.request import Downstream, Route, TurnRequest
from gateway.turns.turn import Outcome, Step

KEY = KeySnapshot(1, "tests", "", "")
HELLO: Mapping[str, object] = {
    "model": "gpt-5.5",
    "stream": True,
    "store": False,
    "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
}


def request(
    *,
    route: Route = Route.CODEX,
    headers: Mapping[str, str] | None = None,
    at: float = 1_800_000_000.0,
    key: KeySnapshot = KEY,
    **fields: object,
) -> TurnRequest:
    """A request for a stream that came in at `at` (unix seconds); `fields` change its body."""
    body = parse_body(json.dumps({**HELLO, **fields}).encode())
    return TurnRequest(key, route, Downstream.SSE, list((headers or {}).items()), body, at, uuid.uuid4())


def record(*, clock: Clock | None = None, **fields: object) -> TurnRecord:
    """The record of a turn that was just received."""
    return TurnRecord(request(**fields), clock or Clock(wall=lambda: 1_800_000_001.0))


def sent(turn: TurnRecord) -> TurnRecord:
    """`turn`, sent to account 1 and open in the ledger."""
    turn.account_id, turn.account_name, turn.upstream = 1, "ada", "http"
    for step in (Step.ADMIT, Step.ROUTE, Step.SEND):
        turn.step(step)
    return turn


def settled(turn: TurnRecord, outcome: Outcome = Outcome.COMPLETED) -> TurnRecord:
    """`turn`, settled."""
    turn.step(Step.SETTLE)
    turn.outcome = outcome
    return turn
