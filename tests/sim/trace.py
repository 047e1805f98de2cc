"""What happened in a world, in order: a digest that proves two runs equal, and the end of it to be read."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

# Events that are kept to be read; the digest is of all.
KEPT = 40_000
# The last events of anything that a timeline shows, beside those of a turn and without a turn.
AROUND = 12
AROUND_NOTHING = 40

Fact = str | int | float | None


@dataclass(frozen=True, slots=True)
class Noted:
    at: float
    what: str
    facts: tuple[tuple[str, Fact], ...]

    def __str__(self) -> str:
        told = "  ".join(f"{name}={value}" for name, value in self.facts if value not in (None, ""))
        return f"{self.at:12.4f}  {self.what:<24} {told}"

    def mentions(self, words: frozenset[str]) -> bool:
        return any(str(value) in words for _, value in self.facts)


class Trace:
    """The events of one run. Facts must be the same in every run of the seed: no addresses, no process ids."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._hash = hashlib.blake2b(digest_size=12)
        self._kept: deque[Noted] = deque(maxlen=KEPT)
        self.count = 0

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def note(self, what: str, **facts: Fact) -> None:
        noted = Noted(self._time(), what, tuple(facts.items()))
        self._kept.append(noted)
        self.count += 1
        self._hash.update(f"{noted.at:.7f} {what} {noted.facts}\n".encode())

    def everything(self) -> list[str]:
        """All events that are kept."""
        return [str(noted) for noted in self._kept]

    def timeline(self, about: Iterable[str]) -> list[str]:
        """The kept events that mention any word of `about`, and the last ones of anything; more of these without it."""
        words = frozenset(about)
        kept = list(self._kept)
        last = len(kept) - (AROUND if words else AROUND_NOTHING)
        return [
            f"{'>' if noted.mentions(words) else ' '} {noted}"
            for at, noted in enumerate(kept)
            if at >= last or noted.mentions(words)
        ]
