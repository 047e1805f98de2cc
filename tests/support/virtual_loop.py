"""An event loop whose time passes only when nothing else is left to do, so that timeouts cost no time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from typing import Any, ParamSpec

from gateway.clock import Clock

P = ParamSpec("P")

EPOCH = 1_800_000_000.0
"""Unix time when a virtual loop begins."""


class Stuck(RuntimeError):
    """Everything waits, and no timer is set: nothing will ever happen again."""


class _JumpingSelector(selectors.BaseSelector):
    """Looks at its files without waiting; what it was asked to wait, it adds to the time instead."""

    def __init__(self) -> None:
        self.now = 0.0
        self._files = selectors.DefaultSelector()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._files.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._files.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._files.modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._files.select(0)
        if not ready and timeout is None:
            raise Stuck("every task waits, and no timer is set")
        if not ready and timeout:
            self.now += timeout
        return ready

    def close(self) -> None:
        self._files.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._files.get_map()


class VirtualLoop(asyncio.SelectorEventLoop):
    """Jumps to the next timer when nothing is ready. It is for code without sockets and threads."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an asynchronous test on a loop of its own, in virtual time."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


def loop_clock() -> Clock:
    """A clock that tells the time of the running loop."""
    loop = asyncio.get_running_loop()
    return Clock(monotonic=loop.time, wall=lambda: EPOCH + loop.time())
