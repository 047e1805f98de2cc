"""What the ledger keeps of a turn while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

from gateway.protocol.events import Usage
from gateway.turns.request import TurnRequest
from gateway.turns.turn import Outcome, Phase


class Attempt(TypedDict, total=False):
    """One choice of an account: which, why, over whom, and what came of it."""

    account: str
    transport: str
    chosen_from: str
    passed_over: dict[str, str]
    cause: str
    move: str
    at_ms: int


@dataclass(eq=False, slots=True)
class TurnRecord:
    """One row of the ledger. Only the turn's own task writes to it."""

    request: TurnRequest
    account_id: int | None = None
    account_name: str = ""
    upstream: str = ""
    response_id: str = ""
    phases: dict[Phase, int] = field(default_factory=dict)
    outcome: Outcome | None = None
    cause: str = ""
    code: str = ""
    status: int | None = None
    attempts: list[Attempt] = field(default_factory=list)
    response_bytes: int = 0
    events: int = 0
    usage: Usage | None = None
