"""How the replicas that live share a limit: equal parts, of which the unused may be borrowed. Pure.

Each replica tells in its heartbeat what it uses and works out its own allowance from what all have told. With the
same news everywhere the allowances together never exceed the limit; for the second or two that news takes, they may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast


@dataclass(frozen=True, slots=True)
class Use:
    """What a replica holds of the shared limits: turns, bytes of their bodies, and by account streams and lanes."""

    turns: int = 0
    size: int = 0
    streams: Mapping[int, int] = field(default_factory=dict)
    lanes: Mapping[int, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """As a heartbeat carries it."""
        return {
            "turns": self.turns,
            "size": self.size,
            "streams": {str(account): count for account, count in self.streams.items() if count},
            "lanes": {str(account): count for account, count in self.lanes.items() if count},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Use:
        """What another replica told; anything missing counts as nothing."""
        return cls(
            turns=cast(int, value.get("turns", 0)),
            size=cast(int, value.get("size", 0)),
            streams=_counts(value.get("streams")),
            lanes=_counts(value.get("lanes")),
        )


NO_USE = Use()


def _counts(value: object) -> Mapping[int, int]:
    counts = cast(Mapping[str, int], value or {})
    return {int(account): count for account, count in counts.items()}


def allowance(limit: int, mine: int, others: Sequence[int]) -> int:
    """How much of `limit` a replica may hold that holds `mine` now, while `others` hold what they told.

    Everybody has an equal part and keeps a quarter of it ready, so that a replica that wakes up need not wait; what
    is unused beyond that goes in equal parts to those whose own part is full. Nobody grows over what the others leave,
    and nobody is left with nothing: of a limit smaller than the number of replicas each has one.
    """
    if not others:
        return limit
    part = limit // (len(others) + 1)
    keep = max(1, part // 4)
    left = limit - mine - sum(others)
    idle = [used for used in others if used < part]
    full = 1 + len(others) - len(idle)
    if mine < part:
        fair = min(part, mine + keep) if full > 1 else part
        return max(1, min(fair, mine + left))
    spare = sum(max(0, part - keep - used) for used in idle)
    unkept = left - sum(min(keep, part - used) for used in idle)
    return max(1, min(part + spare // full, mine + max(0, unkept) // full))
