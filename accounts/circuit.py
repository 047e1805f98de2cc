"""Whether an account's recent turns speak against giving it another one.

Pure: times are arguments, in unix seconds of one clock. Only failures that are the account's own may be reported
here; a client that left, a gateway that is full and a host without network say nothing about an account.

An account that fails again and again is ejected: its circuit is open, and turns go elsewhere. Each ejection in a
row is longer than the one before; good time shortens the next one. After it one turn at a time is let in as a
probe, and two good probes close the circuit. Two rules keep a pool from locking itself out: when every circuit is
open, the least bad account is tried rather than none; and when all accounts fail alike, the fault lies with what
they share, so that none of them is ejected for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class CircuitState(StrEnum):
    """What a circuit lets in: everything, nothing, or one probe at a time."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"


class Step(StrEnum):
    """What happens to a circuit."""

    TRIP = "trip"  # too many failures, or a failed probe
    PROBE = "probe"  # a turn is let in to see whether the account works again, or has shown it as the last resort
    CLOSE = "close"  # enough good probes
    PARDON = "pardon"  # the failures were not the account's


TRANSITIONS: dict[tuple[CircuitState, Step], CircuitState] = {
    (CircuitState.CLOSED, Step.TRIP): CircuitState.OPEN,
    (CircuitState.OPEN, Step.PROBE): CircuitState.HALF_OPEN,
    (CircuitState.OPEN, Step.PARDON): CircuitState.CLOSED,
    (CircuitState.HALF_OPEN, Step.TRIP): CircuitState.OPEN,
    (CircuitState.HALF_OPEN, Step.CLOSE): CircuitState.CLOSED,
    (CircuitState.HALF_OPEN, Step.PARDON): CircuitState.CLOSED,
}

# Seconds in which failures count together although successes came between them.
WINDOW = 60.0
# Good probes that close a circuit.
GOOD_PROBES = 2
# A probe that told nothing for so many seconds is taken to be lost, so that it does not keep the circuit shut.
PROBE_PATIENCE = 300.0
# Accounts fail alike when the newest failure of each is no older than this, in seconds.
ALIKE_WINDOW = 120.0


class IllegalStep(RuntimeError):
    """A circuit was asked for a step that its state does not allow: a defect in this module."""


def advance(state: CircuitState, step: Step) -> CircuitState:
    """The state after `step`; raises `IllegalStep` naming both when the pair is not in the table."""
    try:
        return TRANSITIONS[state, step]
    except KeyError:
        raise IllegalStep(f"A circuit that is {state} cannot {step}.") from None


@dataclass(frozen=True, slots=True)
class CircuitSettings:
    """When an account is ejected, and for how long; `ValueError` for what cannot work.

    `failures` in a row eject it; so do twice as many among the last four times as many outcomes of a minute. The
    n-th ejection in a row lasts n times `ejection` seconds, `longest_ejection` at most. Each `longest_ejection` of
    good time lets one ejection be forgotten.
    """

    failures: int = 5
    ejection: float = 10.0
    longest_ejection: float = 300.0

    def __post_init__(self) -> None:
        if self.failures < 1:
            raise ValueError(f"An account cannot be ejected after {self.failures} failures; allow at least 1.")
        if not 0 < self.ejection <= self.longest_ejection < math.inf:
            raise ValueError(
                f"An ejection of {self.ejection} s and at most {self.longest_ejection} s cannot be; the first must be "
                "above 0, the other no shorter and finite."
            )


@dataclass(frozen=True, slots=True)
class Circuit:
    """What is known of one account; replaced, never changed. A new one is closed.

    `since` is when the state last changed, `until` the end of an ejection. `heard_at` is when this process heard of the
    state from another one, 0 if it found it out itself. `outcomes` are times of recent outcomes, true for a failure.
    `probes` are the beginnings of the probes that are under way, `probed_elsewhere` that of one which another process
    has begun. `failed_as` is the kind of the newest failure, None after a success. Raises `ValueError` for an `until`
    of a circuit that is not open and for probes of one that is not half open.
    """

    state: CircuitState = CircuitState.CLOSED
    since: float = 0.0
    heard_at: float = 0.0
    until: float | None = None
    consecutive: int = 0
    outcomes: tuple[tuple[float, bool], ...] = ()
    probes: tuple[float, ...] = ()
    probed_elsewhere: float | None = None
    good_probes: int = 0
    ejections: int = 0
    reported_at: float | None = None
    failed_as: str | None = None

    def __post_init__(self) -> None:
        if (self.until is not None) is not (self.state is CircuitState.OPEN):
            raise ValueError(f"A circuit that is {self.state} cannot last until {self.until}; an open one alone can.")
        probed = self.probes or self.good_probes or self.probed_elsewhere is not None
        if self.state is not CircuitState.HALF_OPEN and probed:
            raise ValueError(f"A circuit that is {self.state} cannot have probes; a half open one alone has some.")

    def admits(self, now: float) -> bool:
        """Whether a turn may be given to the account at `now`; `admit` it then."""
        if self.state is CircuitState.HALF_OPEN:
            elsewhere = () if self.probed_elsewhere is None else (self.probed_elsewhere,)
            return all(now - began >= PROBE_PATIENCE for began in (*self.probes, *elsewhere))
        return self.shut_for(now) == 0

    def shut_for(self, now: float) -> float:
        """Seconds that are left of an ejection; 0 when there is none."""
        return 0.0 if self.until is None else max(0.0, self.until - now)


HEALTHY = Circuit()


def admit(circuit: Circuit, now: float) -> Circuit:
    """Let a turn begin at `now`; report it with the same time as `began`, once it succeeded, failed or neither.

    A turn that is let in after the ejection is a probe. One that is tried before, as the last resort, changes nothing
    by itself: if it fails, that is what was expected, and the ejection lasts no longer for it.
    """
    if circuit.state is CircuitState.CLOSED or circuit.shut_for(now) > 0:
        return circuit
    if circuit.state is CircuitState.HALF_OPEN:
        awaited = (began for began in circuit.probes if now - began < PROBE_PATIENCE)
        return replace(circuit, probes=(*awaited, now))
    return replace(circuit, state=advance(circuit.state, Step.PROBE), since=now, until=None, probes=(now,))


def succeeded(circuit: Circuit, began: float, now: float, settings: CircuitSettings) -> Circuit:
    """A turn that began at `began` has shown that the account works."""
    circuit = replace(circuit, reported_at=now, failed_as=None)
    if circuit.state is CircuitState.CLOSED and began >= circuit.since:
        return replace(circuit, consecutive=0, outcomes=_outcomes(circuit, now, False, settings))
    if circuit.state is CircuitState.OPEN and began > max(circuit.since, circuit.heard_at):
        # The last resort has worked, which is as good as a probe. A turn that began before this process knew of the
        # ejection was no last resort: what led to the ejection may have come after it.
        half_open = advance(circuit.state, Step.PROBE)
        return replace(circuit, state=half_open, since=now, until=None, good_probes=1)
    if began not in circuit.probes:
        return circuit
    good = circuit.good_probes + 1
    if good < GOOD_PROBES:
        return replace(circuit, probes=_without(circuit.probes, began), good_probes=good)
    return replace(
        circuit,
        state=advance(circuit.state, Step.CLOSE),
        since=now,
        probes=(),
        probed_elsewhere=None,
        good_probes=0,
        consecutive=0,
        outcomes=(),
    )


def failed(circuit: Circuit, kind: str, began: float, now: float, settings: CircuitSettings) -> Circuit:
    """A turn that began at `began` has failed by the account's fault; `kind` says how, as one word.

    A turn that began before the circuit last changed says nothing new, since its failure belongs to what led to
    the change; only its kind is kept.
    """
    circuit = replace(circuit, reported_at=now, failed_as=kind)
    if began in circuit.probes:
        return _ejected(circuit, now, settings)
    if circuit.state is not CircuitState.CLOSED or began < circuit.since:
        return circuit
    outcomes = _outcomes(circuit, now, True, settings)
    circuit = replace(circuit, consecutive=circuit.consecutive + 1, outcomes=outcomes)
    failures = sum(1 for _, bad in outcomes if bad)
    if circuit.consecutive < settings.failures and failures < 2 * settings.failures:
        return circuit
    return _ejected(circuit, now, settings)


def released(circuit: Circuit, began: float) -> Circuit:
    """A turn that began at `began` is over and says nothing about the account; the next one may be the probe."""
    return replace(circuit, probes=_without(circuit.probes, began)) if began in circuit.probes else circuit


def pardoned(circuit: Circuit, now: float) -> Circuit:
    """Forget failures that were not the account's, and the ejection they led to."""
    if circuit.state is CircuitState.CLOSED:
        return replace(circuit, consecutive=0, outcomes=())
    return replace(
        circuit,
        state=advance(circuit.state, Step.PARDON),
        since=now,
        until=None,
        probes=(),
        probed_elsewhere=None,
        good_probes=0,
        consecutive=0,
        outcomes=(),
        ejections=max(0, circuit.ejections - 1),
    )


def opened(circuit: Circuit, now: float, settings: CircuitSettings) -> Circuit:
    """Somebody keeps turns from the account, for as long as any ejection lasts; raises `IllegalStep` if it is open."""
    return replace(_ejected(circuit, now, settings), until=now + settings.longest_ejection, failed_as=None)


def reset(circuit: Circuit, now: float) -> Circuit:
    """Somebody has mended what was wrong: nothing speaks against the account any more.

    Raises `IllegalStep` when nothing did.
    """
    return Circuit(state=advance(circuit.state, Step.PARDON), since=now)


def _ejected(circuit: Circuit, now: float, settings: CircuitSettings) -> Circuit:
    good_time = max(0.0, now - circuit.since) if circuit.state is CircuitState.CLOSED else 0.0
    forgotten = int(good_time // settings.longest_ejection)
    most = math.ceil(settings.longest_ejection / settings.ejection)
    ejections = min(most, max(0, circuit.ejections - forgotten) + 1)
    return replace(
        circuit,
        state=advance(circuit.state, Step.TRIP),
        since=now,
        until=now + min(settings.longest_ejection, settings.ejection * ejections),
        ejections=ejections,
        consecutive=0,
        outcomes=(),
        probes=(),
        probed_elsewhere=None,
        good_probes=0,
    )


def _outcomes(circuit: Circuit, now: float, failure: bool, settings: CircuitSettings) -> tuple[tuple[float, bool], ...]:
    kept = circuit.outcomes[1 - 4 * settings.failures :]
    return (*[outcome for outcome in kept if now - outcome[0] < WINDOW], (now, failure))


def _without(probes: tuple[float, ...], began: float) -> tuple[float, ...]:
    place = probes.index(began)
    return probes[:place] + probes[place + 1 :]


def least_bad(circuits: Mapping[int, Circuit]) -> int:
    """The account to try when none admits a turn: one under probe, else the one whose ejection ends first.

    Those that have failed since they were ejected come after those that have not, so that the turns that come in the
    meantime do not all meet the same dead account. Raises `ValueError` when there are no accounts.
    """
    if not circuits:
        raise ValueError("There is no account at all, so none is the least bad.")

    def badness(account: int) -> tuple[float, float, int, int]:
        circuit = circuits[account]
        return (_failed_again(circuit), circuit.until or 0.0, circuit.ejections, account)

    return min(circuits, key=badness)


def _failed_again(circuit: Circuit) -> float:
    """When the newest failure since the ejection was reported; 0 if there was none, or no ejection."""
    if circuit.state is not CircuitState.OPEN or circuit.failed_as is None or circuit.reported_at is None:
        return 0.0
    return circuit.reported_at if circuit.reported_at > circuit.since else 0.0


def common_failure(circuits: Iterable[Circuit], now: float) -> str | None:
    """The kind of failure that is the newest word of all accounts, two or more, within `ALIKE_WINDOW`; else None.

    Give the circuits of all accounts that turns may go to: one that works, or has not been asked, is proof that the
    fault does not lie with what they share, or that there is somewhere to go.
    """
    newest: set[str | None] = set()
    accounts = 0
    for circuit in circuits:
        accounts += 1
        fresh = circuit.reported_at is not None and now - circuit.reported_at <= ALIKE_WINDOW
        newest.add(circuit.failed_as if fresh else None)
    return newest.pop() if accounts > 1 and len(newest) == 1 else None
