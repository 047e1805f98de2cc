"""The life of a turn as literal tables. Pure: no I/O, no framework, no clock.

Two tables live here and nowhere else: which step is legal in which phase, and what a failure means for the turn
and for the account. `docs/design.md` prints both; a test fails when it does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """How far a turn has come. `started` is the upstream's first event that is not metadata, `streaming` the
    first byte given to the client."""

    RECEIVED = "received"
    ADMITTED = "admitted"
    ROUTED = "routed"
    SENT = "sent"
    STARTED = "started"
    STREAMING = "streaming"
    SETTLED = "settled"


class Step(StrEnum):
    """What happens to a turn."""

    ADMIT = "admit"
    ROUTE = "route"
    SEND = "send"
    REROUTE = "reroute"
    START = "start"
    STREAM = "stream"
    SETTLE = "settle"


TRANSITIONS: dict[tuple[Phase, Step], Phase] = {
    (Phase.RECEIVED, Step.ADMIT): Phase.ADMITTED,
    (Phase.ADMITTED, Step.ROUTE): Phase.ROUTED,
    (Phase.ROUTED, Step.SEND): Phase.SENT,
    (Phase.ROUTED, Step.REROUTE): Phase.ADMITTED,
    (Phase.SENT, Step.REROUTE): Phase.ADMITTED,
    (Phase.SENT, Step.START): Phase.STARTED,
    (Phase.STARTED, Step.STREAM): Phase.STREAMING,
    (Phase.RECEIVED, Step.SETTLE): Phase.SETTLED,
    (Phase.ADMITTED, Step.SETTLE): Phase.SETTLED,
    (Phase.ROUTED, Step.SETTLE): Phase.SETTLED,
    (Phase.SENT, Step.SETTLE): Phase.SETTLED,
    (Phase.STARTED, Step.SETTLE): Phase.SETTLED,
    (Phase.STREAMING, Step.SETTLE): Phase.SETTLED,
}


class IllegalStep(RuntimeError):
    """A turn was asked for a step that its phase does not allow: a defect in the gateway."""


def advance(phase: Phase, step: Step) -> Phase:
    """The phase after `step`; raises `IllegalStep` naming both when the pair is not in the table."""
    try:
        return TRANSITIONS[phase, step]
    except KeyError:
        raise IllegalStep(f"a turn that is {phase} cannot {step}") from None


class Outcome(StrEnum):
    """How a turn ended; the ledger stores it."""

    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    CLIENT_GONE = "client_gone"
    UPSTREAM_LOST = "upstream_lost"
    INTERRUPTED = "interrupted"


class Cause(StrEnum):
    """Why a turn could not go on, as seen where it happened."""

    CONNECT_FAILED = "connect_failed"
    LANE_CLOSED = "lane_closed"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    USAGE_LIMIT = "usage_limit"
    RATE_LIMIT = "rate_limit"
    UPSTREAM_BUSY = "upstream_busy"
    PREVIOUS_NOT_FOUND = "previous_not_found"
    CONNECTION_LIMIT = "connection_limit"
    REJECTED = "rejected"
    RESPONSE_FAILED = "response_failed"
    UPSTREAM_LOST = "upstream_lost"
    RESPONSE_START_TIMEOUT = "response_start_timeout"
    STREAM_IDLE_TIMEOUT = "stream_idle_timeout"
    LIVENESS = "liveness"
    CLIENT_GONE = "client_gone"
    CLIENT_STALLED = "client_stalled"
    OWNER_UNAVAILABLE = "owner_unavailable"
    LOCAL_REFUSAL = "local_refusal"
    NO_ACCOUNT = "no_account"
    INTERNAL = "internal"


class BodyKind(StrEnum):
    """What a body allows: `free` may go to any account, `bound` to its own alone, a `delta` only to the lane it
    continues, an `implicit` delta was made by the gateway, which still holds the whole input."""

    FREE = "free"
    BOUND = "bound"
    DELTA = "delta"
    IMPLICIT = "implicit"


class Move(StrEnum):
    """What the turn does next."""

    SAME = "same account again"
    ELSEWHERE = "another account"
    RESEND = "the client resends everything"
    SURFACE = "the client is told"


class Blame(StrEnum):
    """What the failure says about the account."""

    NONE = "none"
    EVIDENCE = "circuit evidence"
    LIMITED = "limited until its reset"
    PAUSED = "short pause"
    REFRESH = "token refreshed"
    LOGIN = "needs login"


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: for `cause`, and a body of one of `kinds`, do `move`, at most `tries` times in a turn."""

    cause: Cause
    kinds: frozenset[BodyKind]
    move: Move
    blame: Blame
    tries: int | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What a failure leads to."""

    move: Move
    blame: Blame


ANY = frozenset(BodyKind)
FREE = frozenset({BodyKind.FREE})
FULL = frozenset({BodyKind.FREE, BodyKind.BOUND})
HELD = frozenset({BodyKind.FREE, BodyKind.BOUND, BodyKind.IMPLICIT})
IMPLICIT = frozenset({BodyKind.IMPLICIT})
DELTA = frozenset({BodyKind.DELTA})

CONNECT_ATTEMPTS = 3

# The first row that matches and is not used up counts; when all are, the client is told, with the last one's blame.
RULES: tuple[Rule, ...] = (
    Rule(Cause.CONNECT_FAILED, FREE, Move.ELSEWHERE, Blame.NONE, tries=CONNECT_ATTEMPTS - 1),
    Rule(Cause.CONNECT_FAILED, ANY, Move.SAME, Blame.NONE, tries=CONNECT_ATTEMPTS - 1),
    Rule(Cause.LANE_CLOSED, HELD, Move.SAME, Blame.NONE, tries=1),
    Rule(Cause.LANE_CLOSED, DELTA, Move.RESEND, Blame.NONE),
    Rule(Cause.UNAUTHORIZED, FULL, Move.SAME, Blame.REFRESH, tries=1),
    Rule(Cause.UNAUTHORIZED, FREE, Move.ELSEWHERE, Blame.LOGIN),
    Rule(Cause.UNAUTHORIZED, DELTA, Move.RESEND, Blame.LOGIN),
    Rule(Cause.UNAUTHORIZED, ANY, Move.SURFACE, Blame.LOGIN),
    Rule(Cause.FORBIDDEN, FREE, Move.ELSEWHERE, Blame.EVIDENCE),
    Rule(Cause.FORBIDDEN, ANY, Move.SURFACE, Blame.EVIDENCE),
    Rule(Cause.USAGE_LIMIT, FREE, Move.ELSEWHERE, Blame.LIMITED),
    Rule(Cause.USAGE_LIMIT, DELTA, Move.RESEND, Blame.LIMITED),
    Rule(Cause.USAGE_LIMIT, ANY, Move.SURFACE, Blame.LIMITED),
    Rule(Cause.RATE_LIMIT, FREE, Move.ELSEWHERE, Blame.PAUSED),
    Rule(Cause.RATE_LIMIT, ANY, Move.SURFACE, Blame.PAUSED),
    Rule(Cause.UPSTREAM_BUSY, FREE, Move.ELSEWHERE, Blame.NONE),
    Rule(Cause.UPSTREAM_BUSY, ANY, Move.SURFACE, Blame.NONE),
    Rule(Cause.PREVIOUS_NOT_FOUND, IMPLICIT, Move.SAME, Blame.NONE, tries=1),
    Rule(Cause.PREVIOUS_NOT_FOUND, ANY, Move.SURFACE, Blame.NONE),
    Rule(Cause.CONNECTION_LIMIT, HELD, Move.SAME, Blame.NONE, tries=1),
    Rule(Cause.CONNECTION_LIMIT, ANY, Move.SURFACE, Blame.NONE),
    Rule(Cause.REJECTED, ANY, Move.SURFACE, Blame.NONE),
    Rule(Cause.RESPONSE_FAILED, ANY, Move.SURFACE, Blame.EVIDENCE),
    Rule(Cause.UPSTREAM_LOST, ANY, Move.SURFACE, Blame.EVIDENCE),
    Rule(Cause.RESPONSE_START_TIMEOUT, ANY, Move.SURFACE, Blame.EVIDENCE),
    Rule(Cause.STREAM_IDLE_TIMEOUT, ANY, Move.SURFACE, Blame.EVIDENCE),
    Rule(Cause.LIVENESS, ANY, Move.SURFACE, Blame.NONE),
    Rule(Cause.CLIENT_GONE, ANY, Move.SURFACE, Blame.NONE),
    Rule(Cause.CLIENT_STALLED, ANY, Move.SURFACE, Blame.NONE),
    Rule(Cause.OWNER_UNAVAILABLE, ANY, Move.SURFACE, Blame.NONE),
    Rule(Cause.LOCAL_REFUSAL, ANY, Move.SURFACE, Blame.NONE),
    Rule(Cause.NO_ACCOUNT, ANY, Move.SURFACE, Blame.NONE),
    Rule(Cause.INTERNAL, ANY, Move.SURFACE, Blame.NONE),
)

# A turn may leave its account only while nothing can have run; after that every failure is told to the client.
MOVABLE = frozenset({Phase.ADMITTED, Phase.ROUTED, Phase.SENT})


def decide(phase: Phase, cause: Cause, kind: BodyKind, moves: Iterable[Cause] = ()) -> Decision:
    """What `cause` means for a turn in `phase` with a body of `kind`.

    `moves` are the causes this turn has already moved for; a rule with `tries` is used up after that many moves
    for its cause. The blame holds however the turn goes on.
    """
    done = sum(1 for move in moves if move is cause)
    matching = [rule for rule in RULES if rule.cause is cause and kind in rule.kinds]
    rule = next((rule for rule in matching if rule.tries is None or done < rule.tries), None)
    if rule is None or (rule.move in (Move.SAME, Move.ELSEWHERE) and phase not in MOVABLE):
        return Decision(Move.SURFACE, (rule or matching[-1]).blame)
    return Decision(rule.move, rule.blame)
