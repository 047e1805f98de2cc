"""Cancelling a coroutine at each of its awaits, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any


class Steps:
    """Awaits `work` and counts how often it suspends; at suspension number `at` it calls `strike`."""

    def __init__(self, work: Coroutine[Any, Any, Any], at: int, strike: Callable[[], None]) -> None:
        self._work = work
        self._at = at
        self._strike = strike
        self.suspensions = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._work.__await__()
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                waiting_for = inner.send(value) if error is None else inner.throw(error)
            except StopIteration as end:
                return end.value
            self.suspensions += 1
            if self.suspensions == self._at:
                asyncio.get_running_loop().call_soon(self._strike)
            value, error = None, None
            try:
                value = yield waiting_for
            except BaseException as thrown:  # noqa: BLE001  # passed on to the work, whatever it is
                error = thrown
