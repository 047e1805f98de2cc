"""What operators may ask of a replica."""

from __future__ import annotations

from dataclasses import dataclass

RETIRE_LANE = "retire_lane"


@dataclass(frozen=True, slots=True)
class Asked:
    """An order as its replica gets it; `what` is a word of this module, `lane` the lane's generation."""

    id: int
    what: str
    lane: int
