"""Time and randomness as arguments, so that a test or a simulation can own both."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Clock:
    """`monotonic` measures durations, `wall` is unix time for what is stored or shown; `random` makes every id."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    random: random.Random = field(default_factory=random.SystemRandom)

    def new_id(self) -> uuid.UUID:
        return uuid.UUID(int=self.random.getrandbits(128), version=4)
