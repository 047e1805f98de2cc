"""Which accounts may take a turn, and in which order they are tried.

Pure: time and chance are arguments. A choice explains itself: each candidate is either ranked or passed over
with a reason, and the ledger keeps both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from accounts.circuit import HEALTHY, Circuit, CircuitState, least_bad
from accounts.quota import NOTHING_KNOWN, Quota
from accounts.states import LAST_SECOND, Kind, State, state_at


class Reason(StrEnum):
    """Why an account was passed over, in the order in which the reasons are looked for."""

    NOT_OWNER = "not the owner"  # the body is bound to another account
    NOT_ALLOWED = "not open to this key"
    WRONG_KIND = "of the wrong kind"
    WRONG_MODEL = "without the model"
    LIMITED = "limited"
    PAUSED = "paused"
    NEEDS_LOGIN = "needs login"
    DISABLED = "disabled"
    MODEL_LIMITED = "limited for the model"
    EXCLUDED = "excluded"  # tried before in this turn
    CIRCUIT_OPEN = "circuit open"  # it has failed too often of late
    FULL = "full"  # as many responses in flight as it may have


REASON_OF_STATE = {
    State.LIMITED: Reason.LIMITED,
    State.PAUSED: Reason.PAUSED,
    State.NEEDS_LOGIN: Reason.NEEDS_LOGIN,
    State.DISABLED: Reason.DISABLED,
}


class Strategy(StrEnum):
    """In which order accounts of one priority are tried; the lower priority number goes first in every strategy.

    Usage is the fullest usage window of an account, taken as empty while it is unknown.
    """

    # By responses in flight, as a share of the cap, and by usage, in tenths, added up. An account with
    # twice the capacity fills half as fast, and so gets twice the work.
    CAPACITY_WEIGHTED = "capacity_weighted"
    # In turns, whatever the load.
    ROUND_ROBIN = "round_robin"
    # By usage, then by load.
    LEAST_USED = "least_used"
    # The most used one first, then the busiest: one is used up while the next stays fresh.
    FILL_FIRST = "fill_first"
    # In a fixed order: the next one gets what the one before cannot take.
    PRIORITY = "priority"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An account as the selection sees it.

    `state_until` is unix seconds; `active` counts responses in flight, `cap` is the most that it may have. Turns that
    wait do not count: they wait for accounts that are full, and a full one is not ranked. `models` are those in the
    account's own catalogue, as its plan has them; None means that it is not known.
    `circuit` and `quota` are what its recent turns and its upstream have told. Raises `ValueError` for a cap below
    one, a negative count, or an end that the state cannot have.
    """

    id: int
    name: str
    kind: Kind
    priority: int
    state: State
    state_until: float | None
    active: int
    cap: int
    models: frozenset[str] | None = None
    circuit: Circuit = HEALTHY
    quota: Quota = NOTHING_KNOWN

    def __post_init__(self) -> None:
        if self.cap < 1 or self.active < 0:
            raise ValueError(
                f"Account {self.id} has {self.active} active turns and a cap of {self.cap}; the count cannot be "
                "negative, and the cap must be at least 1."
            )
        if self.state_until is None:
            return
        if self.state is not State.LIMITED or not 0 <= self.state_until <= LAST_SECOND:
            raise ValueError(
                f"Account {self.id} is {self.state} until {self.state_until}; only a limit has an end, in "
                "unix seconds up to the year 9999."
            )


@dataclass(frozen=True, slots=True)
class SelectionRequest:
    """What a turn asks of its account.

    `required` owns the body: no other account may take it. `preferred` is the account of a soft session,
    taken first as long as it is eligible. `excluded` maps accounts tried before to what came of it. `kind` and `model`
    None mean any; a model that no account's catalogue names keeps none of them out. `allowed` are the accounts that the
    client's key may use, None for all.
    """

    required: int | None = None
    preferred: int | None = None
    excluded: Mapping[int, str] = field(default_factory=dict)
    kind: Kind | None = None
    model: str | None = None
    allowed: frozenset[int] | None = None


class PassedOver(NamedTuple):
    """One account that may not take the turn, as judged at `now`.

    `until` and `now` are unix seconds; `until` is known for some limits only. `detail` is what `text` adds to
    the reason.
    """

    id: int
    name: str
    reason: Reason
    detail: str
    until: float | None
    now: float

    @property
    def text(self) -> str:
        """The reason in words: `limited until 14:05`, `full (8 of 8)`. Times are as in `describe`."""
        if self.until is not None:
            return f"{self.reason.value} until {_clock_time(self.until, self.now)}"
        return self.reason.value + self.detail


@dataclass(frozen=True, slots=True)
class Choice:
    """The accounts to try, best first, and all others with the reason against each.

    `missing_owner` is the required account when it is not among the candidates at all. `last_resort` is an account
    that is ranked although its circuit is open, because there is no other. `now` is the time for which the choice
    holds, unix seconds.
    """

    ranked: tuple[int, ...]
    passed_over: tuple[PassedOver, ...]
    now: float
    missing_owner: int | None = None
    last_resort: int | None = None

    @property
    def resets_at(self) -> float | None:
        """When the first of the limited accounts is usable again; None when none is limited or none says."""
        return min((each.until for each in self.passed_over if each.until is not None), default=None)


def choose(
    candidates: Sequence[Candidate],
    request: SelectionRequest,
    now: float,
    *,
    spread: int = 0,
    strategy: Strategy = Strategy.CAPACITY_WEIGHTED,
) -> Choice:
    """Rank the eligible candidates for a turn at `now` (unix seconds).

    Order: the preferred account, then by priority (the lower number first), then as the `strategy` says. Accounts
    equal in all of that are rotated by `spread`: give a counter for round robin, or a random number. When circuits
    alone keep every account from the turn, the least bad one is ranked. Raises `ValueError` when two candidates
    have one id.

    An empty `ranked` is for the caller to turn into a refusal; `passed_over` says which.
    """
    if len({candidate.id for candidate in candidates}) != len(candidates):
        raise ValueError("Two candidates have the same account id; each account may stand for selection once.")
    if not any(request.model in candidate.models for candidate in candidates if candidate.models is not None):
        # No catalogue names it. It may be new, or known by another name, and so the upstreams have the word.
        listed = None
    else:
        listed = request.model
    eligible: list[Candidate] = []
    passed_over: list[PassedOver] = []
    for candidate in candidates:
        against = _against(candidate, request, listed, now)
        if against is None:
            eligible.append(candidate)
        else:
            passed_over.append(against)
    last_resort = None
    if not eligible and any(each.reason is Reason.CIRCUIT_OPEN for each in passed_over):
        last_resort = _last_resort(candidates, passed_over, now)
    if last_resort is not None:
        eligible.append(last_resort)
    required = request.required
    missing = required is not None and all(candidate.id != required for candidate in candidates)
    return Choice(
        ranked=_rank(eligible, request.preferred, spread, _standings(eligible, strategy, now)),
        passed_over=tuple(passed_over),
        now=now,
        missing_owner=required if missing else None,
        last_resort=None if last_resort is None else last_resort.id,
    )


def _against(candidate: Candidate, request: SelectionRequest, listed: str | None, now: float) -> PassedOver | None:
    """Return what speaks against `candidate`, the most lasting reason first; None when it is eligible.

    `listed` is the model if any account's catalogue names it.
    """
    until = None
    detail = ""
    state = state_at(candidate.state, candidate.state_until, now)
    if request.required not in (None, candidate.id):
        reason = Reason.NOT_OWNER
    elif request.allowed is not None and candidate.id not in request.allowed:
        reason = Reason.NOT_ALLOWED
    elif request.kind not in (None, candidate.kind):
        reason = Reason.WRONG_KIND
    elif listed is not None and candidate.models is not None and listed not in candidate.models:
        reason = Reason.WRONG_MODEL
    elif state is not State.ACTIVE:
        reason = REASON_OF_STATE[state]
        until = candidate.state_until
    elif (until := candidate.quota.limited_until(request.model, now)) is not None:
        reason = Reason.MODEL_LIMITED
    elif candidate.id in request.excluded:
        reason = Reason.EXCLUDED
        detail = f": {request.excluded[candidate.id]}"
    elif not candidate.circuit.admits(now):
        reason = Reason.CIRCUIT_OPEN
        detail = _circuit_detail(candidate.circuit, now)
    elif candidate.active >= candidate.cap:
        reason = Reason.FULL
        detail = f" ({candidate.active} of {candidate.cap})"
    else:
        return None
    return PassedOver(candidate.id, candidate.name, reason, detail, until, now)


def _circuit_detail(circuit: Circuit, now: float) -> str:
    if circuit.state is CircuitState.HALF_OPEN:
        return ", being probed"
    return f" for another {math.ceil(circuit.shut_for(now))} s"


def _last_resort(candidates: Sequence[Candidate], passed_over: list[PassedOver], now: float) -> Candidate | None:
    """Take the least bad account out of `passed_over`, where circuits alone are in the way; None while one is full.

    A full account is worth waiting for. If the least bad one is itself full, it is called that, so that the turn
    waits for it.
    """
    if any(each.reason is Reason.FULL for each in passed_over):
        return None
    shut = {each.id for each in passed_over if each.reason is Reason.CIRCUIT_OPEN}
    chosen = least_bad({candidate.id: candidate.circuit for candidate in candidates if candidate.id in shut})
    place = next(place for place, each in enumerate(passed_over) if each.id == chosen)
    candidate = next(candidate for candidate in candidates if candidate.id == chosen)
    if candidate.active < candidate.cap:
        del passed_over[place]
        return candidate
    passed_over[place] = PassedOver(
        candidate.id, candidate.name, Reason.FULL, f" ({candidate.active} of {candidate.cap})", None, now
    )
    return None


Standing: TypeAlias = tuple[float, ...]

# What the strategies sort by, from a candidate, its load (0 to 1) and its usage (0 to 100); the lowest goes first.
_STANDINGS: dict[Strategy, Callable[[Candidate, float, float], Standing]] = {
    # In tenths, since with every percent the order of accounts that are equal for all purposes would change.
    Strategy.CAPACITY_WEIGHTED: lambda each, load, usage: (load + usage // 10 / 10,),
    Strategy.ROUND_ROBIN: lambda each, load, usage: (),
    Strategy.LEAST_USED: lambda each, load, usage: (usage, load),
    Strategy.FILL_FIRST: lambda each, load, usage: (-usage, -load, each.id),
    Strategy.PRIORITY: lambda each, load, usage: (each.id,),
}


def _standings(eligible: Sequence[Candidate], strategy: Strategy, now: float) -> list[Standing]:
    standing = _STANDINGS[strategy]
    return [standing(each, each.active / each.cap, each.quota.used_percent(now) or 0.0) for each in eligible]


def _rank(
    eligible: Sequence[Candidate], preferred: int | None, spread: int, standings: Sequence[Standing]
) -> tuple[int, ...]:
    ordered = sorted(
        ((each.id != preferred, each.priority, standing), each.id)
        for each, standing in zip(eligible, standings, strict=True)
    )
    ranked: list[int] = []
    for _, group in groupby(ordered, key=itemgetter(0)):
        equals = [account for _, account in group]
        start = spread % len(equals)
        ranked += equals[start:] + equals[:start]
    return tuple(ranked)


def describe(choice: Choice) -> str:
    """Say in one line what became of the candidates: `3 accounts: 1 limited until 14:05, 1 paused, 1 full`.

    Times are UTC, with their date when that is not the day of the choice.
    """
    total = len(choice.ranked) + len(choice.passed_over)
    usable = "tried although its circuit is open" if choice.last_resort is not None else "usable"
    counts = [f"{len(choice.ranked)} {usable}"] if choice.ranked else []
    for reason in Reason if choice.passed_over else ():
        group = [each for each in choice.passed_over if each.reason is reason]
        if group:
            counts.append(f"{len(group)} {reason.value}{_earliest(group, choice.now)}{_tried(group)}")
    if choice.missing_owner is not None:
        counts.append(f"the owner (account {choice.missing_owner}) is not in the pool")
    head = "no accounts" if total == 0 else "1 account" if total == 1 else f"{total} accounts"
    return f"{head}: {', '.join(counts)}" if counts else head


def _earliest(group: Sequence[PassedOver], now: float) -> str:
    untils = [each.until for each in group if each.until is not None]
    if not untils:
        return ""
    word = " until" if len(group) == 1 else ", the first until"
    return f"{word} {_clock_time(min(untils), now)}"


def _tried(group: Sequence[PassedOver]) -> str:
    """What came of accounts that were tried before, where it was the same for all."""
    found = {each.detail for each in group if each.reason is Reason.EXCLUDED}
    return found.pop() if len(found) == 1 else ""


def _clock_time(unix: float, now: float) -> str:
    moment = datetime.fromtimestamp(unix, UTC)
    today = datetime.fromtimestamp(now, UTC).date()
    return f"{moment:%H:%M}" if moment.date() == today else f"{moment:%Y-%m-%d %H:%M}"
