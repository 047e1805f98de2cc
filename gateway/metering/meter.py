"""The meter of a process: the usage book with a clock, and what is written down of it and learned from others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil

from gateway.clock import Clock
from gateway.errors import KeyLimited
from gateway.keys import KeySnapshot
from gateway.metering.limits import Limit, Unit, Window, window_of, windows_at
from gateway.metering.usage import Claim, Counts, Elsewhere, Exceeded, Tally, UsageBook


@dataclass(frozen=True, slots=True)
class Standing:
    """How a key stands to one of its limits; `resets_at` is unix seconds."""

    limit: Limit
    used: int
    resets_at: int


class Meter:
    """Counts what keys use and refuses what is over their limits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._book = UsageBook()
        self._watched: dict[int, KeySnapshot] = {}
        self._running_changed: Callable[[Elsewhere, Iterable[int]], None] = lambda elsewhere, keys: None

    def watch(self, keys: Iterable[KeySnapshot]) -> None:
        """These are the keys there are; those with limits have to be looked up with other processes."""
        self._watched = {key.id: key for key in keys if key.limits and key.enabled}

    def on_learned(self, listener: Callable[[Elsewhere, Iterable[int]], None]) -> None:
        """Call `listener` with what others have running whenever that is read."""
        self._running_changed = listener

    @property
    def watched(self) -> frozenset[int]:
        """Keys with limits, by id."""
        return frozenset(self._watched)

    def claim(self, key: KeySnapshot) -> Claim:
        """Count a request; raises `KeyLimited`. Settle the claim or give it back, once."""
        claimed = self._book.claim(key.id, key.limits, self._clock.wall())
        if isinstance(claimed, Exceeded):
            raise self._limited(claimed)
        return claimed

    def confirm(self, claim: Claim) -> None:
        """Look once more, with what has been learned since the claim; raises `KeyLimited`."""
        exceeded = self._book.confirm(claim)
        if exceeded is not None:
            raise self._limited(exceeded)

    def settle(self, claim: Claim, spent: Counts) -> None:
        """The turn has ended, see `UsageBook.settle`."""
        self._book.settle(claim, spent, self._clock.wall())

    def give_back(self, claim: Claim) -> None:
        """The turn was not carried, see `UsageBook.give_back`."""
        self._book.give_back(claim)

    def standings(self, key: KeySnapshot) -> list[Standing]:
        """How the key stands to each of its limits now."""
        now = self._clock.wall()
        windows = [(limit, window_of(limit.span, now)) for limit in key.limits.windows]
        return [
            Standing(limit, self._book.used(key.id, window).of(limit.unit), window.end) for limit, window in windows
        ]

    def used(self, key: KeySnapshot) -> dict[Window, Counts]:
        """What the key has used in the windows of now."""
        return {window: self._book.used(key.id, window) for window in windows_at(self._clock.wall())}

    def take_tally(self, keys: Iterable[int]) -> Tally:
        """What has to be written down now, with the turns of these keys."""
        now = self._clock.wall()
        return Tally(self._book.take_changed(now), frozenset(self._watched.keys() & set(keys)), now)

    def put_back(self, tally: Tally) -> None:
        """It could not be written down."""
        self._book.put_back(tally.usage)

    def learn(self, keys: Iterable[int], elsewhere: Elsewhere, read_at: float) -> None:
        """Know what other processes count for `keys`, as read from `read_at` (monotonic seconds) on."""
        keys = tuple(keys)
        self._book.learn(keys, elsewhere.counts, read_at)
        self._running_changed(elsewhere, keys)

    def _limited(self, exceeded: Exceeded) -> KeyLimited:
        limit = exceeded.limit
        unit = "requests" if limit.unit is Unit.REQUESTS else "tokens"
        return KeyLimited(
            f"This key may use {limit.most} {unit} per {limit.span}; no upstream was contacted.",
            code=limit.code,
            retry_after=max(1, ceil(exceeded.resets_at - self._clock.wall())),
            resets_at=exceeded.resets_at,
        )
