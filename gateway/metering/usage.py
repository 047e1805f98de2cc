"""What keys have used, counted in memory and compared with their limits. Pure: the time is an argument.

Each process counts its own turns and learns what the others have counted, so a sum is exact about itself and as old
as the last look at the others. `meter.py` says when that look is taken; `docs/design.md` what follows from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.metering.limits import KeyLimits, Limit, Unit, Window, window_of, windows_at

# Windows that ended so many seconds ago are forgotten: what was counted in them is written down by then.
KEPT = 120.0


@dataclass(frozen=True, slots=True)
class Counts:
    """What was used. `micros` is the cost in millionths of a dollar, of all turns but the `unpriced` ones."""

    requests: int = 0
    tokens: int = 0
    micros: int = 0
    unpriced: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.requests + other.requests,
            self.tokens + other.tokens,
            self.micros + other.micros,
            self.unpriced + other.unpriced,
        )

    def of(self, unit: Unit) -> int:
        return self.requests if unit is Unit.REQUESTS else self.tokens


NOTHING = Counts()
Place = tuple[int, Window]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What other processes have counted: by key and window, and turns they have running, by key."""

    counts: Mapping[Place, Counts] = field(default_factory=dict)
    running: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tally:
    """What a process has to write down along with its turns, and the keys whose limits it has to look up then.

    `at` is unix seconds.
    """

    usage: Mapping[Place, Counts] = field(default_factory=dict)
    watched: frozenset[int] = frozenset()
    at: float = 0.0


NO_TALLY = Tally()


@dataclass(frozen=True, slots=True)
class Exceeded:
    """A limit that is reached, what was used of it, and when its window ends (unix seconds)."""

    limit: Limit
    used: int
    resets_at: int


class State(StrEnum):
    HELD = "held"
    SETTLED = "settled"
    GIVEN_BACK = "given back"


@dataclass(eq=False, slots=True)
class Claim:
    """One turn's request, counted when it was made. `positions` say the how-manieth of this process it was."""

    key: int
    limits: KeyLimits
    positions: Mapping[Window, int]
    state: State = State.HELD


class UsageBook:
    """Counts per key and window. Every method returns at once and raises `RuntimeError` on misuse."""

    def __init__(self) -> None:
        self._own: dict[Place, Counts] = {}
        self._others: dict[Place, Counts] = {}
        self._read_at: dict[int, float] = {}
        self._changed: set[Place] = set()

    def used(self, key: int, window: Window) -> Counts:
        """What all processes have counted, as far as this one knows."""
        return self._own.get((key, window), NOTHING) + self._others.get((key, window), NOTHING)

    def claim(self, key: int, limits: KeyLimits, now: float) -> Claim | Exceeded:
        """Count a request of `key`, or say which limit is reached: that with the latest end, if several are."""
        reached = [found for limit in limits.windows if (found := self._check(key, limit, now)) is not None]
        if reached:
            return max(reached, key=lambda exceeded: exceeded.resets_at)
        positions = {window: self._add((key, window), Counts(requests=1)).requests for window in windows_at(now)}
        return Claim(key, limits, positions)

    def confirm(self, claim: Claim) -> Exceeded | None:
        """Whether a limit turned out to be reached by others since `claim` was made, and which."""
        for limit in claim.limits.windows:
            window = next(window for window in claim.positions if window.span is limit.span)
            others = self._others.get((claim.key, window), NOTHING)
            if limit.unit is Unit.REQUESTS:
                used, over = others.requests, others.requests + claim.positions[window] > limit.most
            else:
                used = self.used(claim.key, window).tokens
                over = used >= limit.most
            if over:
                return Exceeded(limit, used, window.end)
        return None

    def settle(self, claim: Claim, spent: Counts, now: float) -> None:
        """The turn has ended and `spent` this; its request counts unless `spent` has none.

        Tokens and cost belong to the windows of `now`, the request to those in which it was claimed.
        """
        self._leave(claim, State.SETTLED)
        if spent.requests == 0:
            self._take_back(claim)
        told = Counts(0, spent.tokens, spent.micros, spent.unpriced)
        if told != NOTHING:
            for window in windows_at(now):
                self._add((claim.key, window), told)

    def give_back(self, claim: Claim) -> None:
        """The turn was not carried: its request does not count."""
        self._leave(claim, State.GIVEN_BACK)
        self._take_back(claim)

    def take_changed(self, now: float) -> dict[Place, Counts]:
        """What this process has counted in all, where that changed since the last call; it is written down now."""
        taken = {place: self._own.get(place, NOTHING) for place in self._changed}
        self._changed.clear()
        self._forget(now, kept=taken.keys())
        return taken

    def put_back(self, places: Iterable[Place]) -> None:
        """These could not be written down; they are taken again."""
        self._changed.update(place for place in places if place in self._own)

    def learn(self, keys: Iterable[int], counts: Mapping[Place, Counts], read_at: float) -> None:
        """Know what others have counted for `keys` in the windows of now; an older reading changes nothing."""
        fresh = {key for key in keys if self._read_at.get(key, read_at) <= read_at}
        self._read_at.update(dict.fromkeys(fresh, read_at))
        for place in [place for place in self._others if place[0] in fresh]:
            del self._others[place]
        self._others.update({place: count for place, count in counts.items() if place[0] in fresh})

    def _check(self, key: int, limit: Limit, now: float) -> Exceeded | None:
        window = window_of(limit.span, now)
        used = self.used(key, window).of(limit.unit)
        return Exceeded(limit, used, window.end) if used >= limit.most else None

    def _add(self, place: Place, more: Counts) -> Counts:
        counted = self._own[place] = self._own.get(place, NOTHING) + more
        self._changed.add(place)
        return counted

    def _take_back(self, claim: Claim) -> None:
        for window in claim.positions:
            place = (claim.key, window)
            if place in self._own:
                self._add(place, Counts(requests=-1))

    def _leave(self, claim: Claim, state: State) -> None:
        if claim.state is not State.HELD:
            raise RuntimeError(f"a claim that is {claim.state} cannot be {state}")
        claim.state = state

    def _forget(self, now: float, kept: Iterable[Place]) -> None:
        over = [place for place in self._own if place[1].end + KEPT < now and place not in kept]
        for place in over:
            del self._own[place]
