"""What is known of a turn while it runs, and what the ledger keeps of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

from gateway.clock import Clock
from gateway.continuity.leases import LeaseKey, Tenure
from gateway.continuity.sessions import Session
from gateway.protocol.events import Usage
from gateway.turns.request import TurnRequest
from gateway.turns.turn import Outcome, Phase, Step, advance


class Attempt(TypedDict, total=False):
    """One choice of an account: which, why, over whom, and what came of it.

    `left` says which account the conversation left for it, by what authority, and what stayed behind.
    """

    account: str
    transport: str
    chosen_from: str
    passed_over: dict[str, str]
    left: str
    phase: str
    cause: str
    move: str
    at_ms: int


@dataclass(eq=False, slots=True)
class TurnRecord:
    """One turn and one row of the ledger. Only the turn's own task writes to it.

    `phases` holds when each phase was first reached, in milliseconds since the request was received; `sessions` are
    what of its conversation has to be written with it. `cost` is millionths of a dollar, None when it is not known. On
    a lane that others may continue on, `lease` names it: it is claimed with the turn's row unless the turn has a
    `tenure` of it already. `anchored` says that its response may be found there.
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
    cost: int | None = None
    sessions: list[Session] = field(default_factory=list)
    lease: LeaseKey | None = None
    tenure: Tenure | None = None
    anchored: bool = False

    def step(self, step: Step) -> None:
        """Go on to the next phase; raises `IllegalStep` when this one does not allow it."""
        self.phase = advance(self.phase, step)
        self.phases.setdefault(self.phase, self.elapsed_ms())

    def elapsed_ms(self) -> int:
        """Milliseconds since the request was received."""
        return max(0, round((self.clock.wall() - self.request.received_at) * 1000))
