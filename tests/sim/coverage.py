"""Which causes a turn can meet in which phase, and which of these pairs a run has reached.

The engine's table of decisions (`gateway/turns/turn.py`) has a row for each cause; what a cause is decides in which
phases it can come. A pair that is not listed here and comes all the same is a violation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gateway.turns.turn import Cause, Phase

P, C = Phase, Cause
BEFORE = (P.RECEIVED, P.ADMITTED, P.ROUTED, P.SENT)
ANYWHERE = (*BEFORE, P.STARTED, P.STREAMING)

REACHABLE: dict[Cause, tuple[Phase, ...]] = {
    # Dialling a lane; over HTTP the connection is made after the turn is written down, as a part of sending.
    C.CONNECT_FAILED: (P.ROUTED, P.SENT),
    # A lane found dead when its idle events are read, or when the frame is about to be written.
    C.LANE_CLOSED: (P.ROUTED, P.SENT),
    # Refusals: of a handshake, or of a request before its response has begun. A turn that has left the account and
    # finds no other is admitted again when its client is told.
    C.UNAUTHORIZED: (P.ADMITTED, P.ROUTED, P.SENT),
    C.FORBIDDEN: (P.ADMITTED, P.ROUTED, P.SENT),
    C.USAGE_LIMIT: (P.ADMITTED, P.ROUTED, P.SENT),
    C.RATE_LIMIT: (P.ADMITTED, P.ROUTED, P.SENT),
    C.UPSTREAM_BUSY: (P.ADMITTED, P.ROUTED, P.SENT),
    C.REJECTED: (P.ROUTED, P.SENT),
    C.PREVIOUS_NOT_FOUND: (P.SENT,),
    C.CONNECTION_LIMIT: (P.SENT,),
    # The response itself.
    C.RESPONSE_FAILED: (P.STARTED, P.STREAMING),
    C.UPSTREAM_LOST: (P.SENT, P.STREAMING),
    C.RESPONSE_START_TIMEOUT: (P.SENT,),
    C.STREAM_IDLE_TIMEOUT: (P.STREAMING,),
    C.LIVENESS: (P.SENT, P.STREAMING),
    # The client, at any time but before its request is complete.
    C.CLIENT_GONE: ANYWHERE,
    C.CLIENT_STALLED: (P.SENT, P.STARTED, P.STREAMING),
    # Routing finds that the owner of a continuation is gone, borrowing that it is busy; or the owner has refused it,
    # and the client is to send everything.
    C.OWNER_UNAVAILABLE: (P.ADMITTED, P.ROUTED, P.SENT),
    # The gateway: full, without a lane, without a ledger, stopping.
    C.LOCAL_REFUSAL: ANYWHERE,
    # Nobody can take the turn: found when it is routed, or when the account that it had has just refused it.
    C.NO_ACCOUNT: (P.ADMITTED, P.ROUTED, P.SENT),
}
# A keepalive can be what a client does not take. That it is in these phases needs a full buffer left by the turn before
# and an account that is dialled for as long as the client stalls: it can be, and no run has to show it.
RARE = frozenset({(P.ADMITTED, C.CLIENT_STALLED), (P.ROUTED, C.CLIENT_STALLED)})
PAIRS = frozenset((phase, cause) for cause, phases in REACHABLE.items() for phase in phases)


class Coverage:
    """Counts the pairs that turns have met."""

    def __init__(self) -> None:
        self.met: Counter[tuple[str, str]] = Counter()

    def meet(self, phase: str, cause: str) -> bool:
        """Count a pair; whether it is one that can be."""
        self.met[phase, cause] += 1
        return (phase, cause) in PAIRS or (phase, cause) in RARE

    @property
    def missing(self) -> list[tuple[str, str]]:
        return sorted((str(phase), str(cause)) for phase, cause in PAIRS if (phase, cause) not in self.met)

    def add(self, met: Iterable[tuple[tuple[str, str], int]]) -> None:
        for pair, count in met:
            self.met[pair] += count

    def table(self) -> str:
        """One line per cause, with how often it was met in each phase; a dash where it cannot be."""
        phases = [phase for phase in Phase if phase is not Phase.SETTLED]
        lines = ["".join([f"{'':24}", *(f"{phase:>10}" for phase in phases)])]
        for cause in REACHABLE:
            cells = (str(self.met[phase, cause]) if (phase, cause) in PAIRS else "-" for phase in phases)
            lines.append("".join([f"{cause:24}", *(f"{cell:>10}" for cell in cells)]))
        return "\n".join(lines)
