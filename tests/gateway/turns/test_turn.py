"""The life of a turn: its two tables, and a turn driven by them through any order of events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.turns.turn import (
    CONNECT_ATTEMPTS,
    RULES,
    TRANSITIONS,
    Blame,
    BodyKind,
    Cause,
    Decision,
    IllegalStep,
    Move,
    Phase,
    Step,
    advance,
    decide,
)

# Written down a second time, by hand, so that a slip in the table is seen.
LEGAL = {
    "received": {"admit": "admitted", "settle": "settled"},
    "admitted": {"route": "routed", "settle": "settled"},
    "routed": {"send": "sent", "reroute": "admitted", "settle": "settled"},
    "sent": {"start": "started", "reroute": "admitted", "settle": "settled"},
    "started": {"stream": "streaming", "settle": "settled"},
    "streaming": {"settle": "settled"},
    "settled": {},
}
ON = (Move.SAME, Move.ELSEWHERE)
HAS_RUN = (Phase.STARTED, Phase.STREAMING)
# Nobody can say what ran, or everybody can: the request is never sent a second time.
MAY_HAVE_RUN = (
    Cause.UPSTREAM_LOST,
    Cause.RESPONSE_START_TIMEOUT,
    Cause.STREAM_IDLE_TIMEOUT,
    Cause.LIVENESS,
    Cause.REJECTED,
    Cause.CLIENT_GONE,
    Cause.CLIENT_STALLED,
    Cause.INTERNAL,
)
# What the account is to blame for, and how; whatever is not here is not its fault.
BLAMED = {
    Cause.UNAUTHORIZED: Blame.LOGIN,
    Cause.FORBIDDEN: Blame.EVIDENCE,
    Cause.USAGE_LIMIT: Blame.LIMITED,
    Cause.RATE_LIMIT: Blame.PAUSED,
    Cause.RESPONSE_FAILED: Blame.EVIDENCE,
    Cause.UPSTREAM_LOST: Blame.EVIDENCE,
    Cause.RESPONSE_START_TIMEOUT: Blame.EVIDENCE,
    Cause.STREAM_IDLE_TIMEOUT: Blame.EVIDENCE,
}

causes = st.sampled_from(Cause)
kinds = st.sampled_from(BodyKind)
histories = st.lists(causes, max_size=4)


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("step", Step)
def test_a_phase_allows_the_steps_of_the_table_and_no_other(phase: Phase, step: Step) -> None:
    after = LEGAL[phase].get(step)
    if after is not None:
        assert advance(phase, step) == after
        return
    with pytest.raises(IllegalStep, match=f"{phase}.*{step}"):
        advance(phase, step)


def test_the_table_has_no_row_beyond_the_legal_ones() -> None:
    assert len(TRANSITIONS) == sum(len(steps) for steps in LEGAL.values())


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.SETTLED])
def test_a_turn_can_be_settled_from_wherever_it_is(phase: Phase) -> None:
    assert advance(phase, Step.SETTLE) is Phase.SETTLED


@pytest.mark.parametrize("cause", Cause)
@pytest.mark.parametrize("kind", BodyKind)
def test_every_cause_decides_for_every_kind_of_body(cause: Cause, kind: BodyKind) -> None:
    for phase in Phase:
        assert isinstance(decide(phase, cause, kind), Decision)


def test_every_rule_can_be_the_first_that_matches() -> None:
    hidden: set[tuple[Cause, BodyKind]] = set()
    for each in RULES:
        pairs = {(each.cause, kind) for kind in each.kinds}
        assert pairs - hidden, f"{each} is hidden by the rules before it"
        # A rule with a number of tries gives way to those behind it when it is used up.
        if each.tries is None:
            hidden |= pairs


def every_decision(moves: list[Cause]) -> Iterator[tuple[Phase, Cause, BodyKind, Decision]]:
    """What each cause leads to in each phase for each kind of body, after these moves."""
    for phase, cause, kind in product(Phase, Cause, BodyKind):
        yield phase, cause, kind, decide(phase, cause, kind, moves)


@settings(max_examples=25)
@given(histories)
def test_nothing_that_has_run_is_moved(moves: list[Cause]) -> None:
    for phase, cause, kind, decision in every_decision(moves):
        assert phase not in HAS_RUN or decision.move not in ON, (phase, cause, kind)


@settings(max_examples=25)
@given(histories)
def test_what_was_sent_and_has_an_unknown_fate_is_told_to_the_client(moves: list[Cause]) -> None:
    for phase, cause, kind, decision in every_decision(moves):
        assert cause not in MAY_HAVE_RUN or decision.move is Move.SURFACE, (phase, cause, kind)


@settings(max_examples=25)
@given(histories)
def test_only_a_free_body_reaches_another_account(moves: list[Cause]) -> None:
    for phase, cause, kind, decision in every_decision(moves):
        assert kind is BodyKind.FREE or decision.move is not Move.ELSEWHERE, (phase, cause, kind)


@settings(max_examples=25)
@given(histories)
def test_a_delta_is_tried_again_only_when_no_connection_was_made(moves: list[Cause]) -> None:
    for phase, cause, kind, decision in every_decision(moves):
        if kind is BodyKind.DELTA and decision.move in ON:
            assert cause is Cause.CONNECT_FAILED, phase


@settings(max_examples=25)
@given(histories)
def test_only_a_clients_own_delta_is_asked_for_in_full(moves: list[Cause]) -> None:
    for phase, cause, kind, decision in every_decision(moves):
        assert kind is BodyKind.DELTA or decision.move is not Move.RESEND, (phase, cause, kind)


@settings(max_examples=25)
@given(histories)
def test_an_account_is_blamed_for_its_own_faults_alone_however_the_turn_goes_on(moves: list[Cause]) -> None:
    for phase, cause, kind, decision in every_decision(moves):
        # A refused token is renewed once before it says anything about its account.
        renewed = cause is Cause.UNAUTHORIZED and cause not in moves and kind in (BodyKind.FREE, BodyKind.BOUND)
        expected = Blame.REFRESH if renewed else BLAMED.get(cause, Blame.NONE)
        assert decision.blame is expected, (phase, cause, kind)


@pytest.mark.parametrize("kind", BodyKind)
def test_connecting_is_tried_three_times_in_all(kind: BodyKind) -> None:
    moves: list[Cause] = []
    while decide(Phase.SENT, Cause.CONNECT_FAILED, kind, moves).move in ON:
        moves.append(Cause.CONNECT_FAILED)
    assert 1 + len(moves) == CONNECT_ATTEMPTS == 3


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (Cause.LANE_CLOSED, BodyKind.FREE),
        (Cause.CONNECTION_LIMIT, BodyKind.BOUND),
        (Cause.PREVIOUS_NOT_FOUND, BodyKind.IMPLICIT),
    ],
)
def test_a_lost_lane_is_replaced_once(cause: Cause, kind: BodyKind) -> None:
    assert decide(Phase.SENT, cause, kind).move is Move.SAME
    assert decide(Phase.SENT, cause, kind, [cause]).move is Move.SURFACE


def test_moves_for_one_cause_do_not_use_up_those_for_another() -> None:
    moves = [Cause.CONNECT_FAILED, Cause.CONNECT_FAILED, Cause.USAGE_LIMIT]
    assert decide(Phase.SENT, Cause.CONNECTION_LIMIT, BodyKind.FREE, moves).move is Move.SAME


def test_the_upstreams_own_previous_response_not_found_passes_on() -> None:
    assert decide(Phase.SENT, Cause.PREVIOUS_NOT_FOUND, BodyKind.DELTA).move is Move.SURFACE


def test_a_connection_limit_costs_a_delta_its_connection_and_is_passed_on() -> None:
    assert decide(Phase.SENT, Cause.CONNECTION_LIMIT, BodyKind.DELTA).move is Move.SURFACE


@dataclass
class Life:
    """What happened to one turn."""

    kind: BodyKind
    phase: Phase = Phase.RECEIVED
    moves: list[Cause] = field(default_factory=list)
    sends: int = 0
    starts: int = 0
    settlements: int = 0
    may_have_run: bool = False


class AnyTurn(RuleBasedStateMachine):
    """A turn as its task drives it, with failures of any cause at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.life = Life(BodyKind.FREE)

    def step(self, step: Step) -> bool:
        """Try a step; whether it was legal. An illegal one changes nothing."""
        try:
            self.life.phase = advance(self.life.phase, step)
        except IllegalStep:
            return False
        return True

    @rule(kind=kinds)
    @precondition(lambda self: self.life.phase is Phase.RECEIVED)
    def choose_body(self, kind: BodyKind) -> None:
        self.life.kind = kind

    @rule(step=st.sampled_from([Step.ADMIT, Step.ROUTE]))
    def go_on(self, step: Step) -> None:
        self.step(step)

    @rule()
    def send(self) -> None:
        if self.step(Step.SEND):
            assert not self.life.may_have_run, "a request that may have run was sent again"
            self.life.sends += 1

    @rule(step=st.sampled_from([Step.START, Step.STREAM]))
    def run(self, step: Step) -> None:
        if self.step(step):
            self.life.may_have_run = True
            self.life.starts += step is Step.START

    @rule()
    def settle(self) -> None:
        self.life.settlements += self.step(Step.SETTLE)

    @rule(cause=causes)
    @precondition(lambda self: self.life.phase is not Phase.SETTLED)
    def fail(self, cause: Cause) -> None:
        life = self.life
        life.may_have_run |= life.phase is Phase.SENT and cause in MAY_HAVE_RUN
        decision = decide(life.phase, cause, life.kind, life.moves)
        # Before an account was chosen there is nothing to move away from.
        if decision.move in ON and life.phase is not Phase.ADMITTED:
            life.moves.append(cause)
            assert self.step(Step.REROUTE), "a decision to move on led to an illegal step"
        else:
            self.settle()

    @invariant()
    def is_settled_at_most_once(self) -> None:
        assert self.life.settlements == (self.life.phase is Phase.SETTLED)

    @invariant()
    def starts_at_most_once(self) -> None:
        assert self.life.starts <= 1

    @invariant()
    def a_settled_turn_takes_no_step(self) -> None:
        if self.life.phase is Phase.SETTLED:
            assert not any(self.step(step) for step in Step)


TestAnyTurn = AnyTurn.TestCase
TestAnyTurn.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
