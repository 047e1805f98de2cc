"""What is known of a turn while it runs, and what the ledger keeps of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

from gateway.clock import Clock
from gateway.continuity.sessions import Session
from gateway.protocol.events import Usage
from gateway.turns.request import TurnRequest
from gateway.turns.turn import Outcome, Phase, Step, advance


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
    """One turn and one row of the ledger. Only the turn's own task writes to it.

    `phases` holds when each phase was first reached, in milliseconds since the request was received; `session` is
    what of its conversation has to be written with it.
    """

    request: TurnRequest
    clock: Clock
    phase: Phase = Phase.RECEIVED
    phases: dict[Phase, int] = field(default_factory=dict)
    account_id: int | None = None
    account_name: str = ""
    upstream: str = ""
    response_id: str = ""
    outcome: Outcome | None = None
    cause: str = ""
    code: str = ""
    status: int | None = None
    attempts: list[Attempt] = field(default_factory=list)
    response_bytes: int = 0
    events: int = 0
    usage: Usage | None = None
    session: Session | None = None

    def step(self, step: Step) -> None:
        """Go on to the next phase; raises `IllegalStep` when this one does not allow it."""
        self.phase = advance(self.phase, step)
        self.phases.setdefault(self.phase, self.elapsed_ms())

    def elapsed_ms(self) -> int:
        """Milliseconds since the request was received."""
        return max(0, round((self.clock.wall() - self.request.received_at) * 1000))
