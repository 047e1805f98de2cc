"""Carries out the steps of a plan on whatever transport the request came by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.simulator.plan import (
    Accept,
    Act,
    Begin,
    Close,
    End,
    Eof,
    MutePongs,
    Refuse,
    Remember,
    Reset,
    Send,
    Silence,
    SplitChunks,
    Step,
    Wait,
)
from gateway.simulator.refusal import Refusal
from gateway.simulator.wire import Wire


class Carrier(Protocol):
    """One transport's way to say things. None of these waits."""

    wire: Wire

    def accept(self) -> None: ...
    def begin(self) -> None: ...
    def send(self, event: Send) -> None: ...
    def refuse(self, refusal: Refusal) -> None: ...
    def close(self, code: int) -> None: ...
    def mute_pongs(self) -> None: ...
    def split_chunks(self, size: int) -> None: ...
    def end(self) -> None: ...


class Pace:
    """When events are due: the first at once, each further one `interval` seconds after the one before.

    Due times are counted from the first, so that what each event costs does not add up. Times are seconds of any
    one clock.
    """

    def __init__(self, interval: float, now: float) -> None:
        self._interval = interval
        self._due = now

    def wait(self, now: float) -> float:
        """The seconds to wait before the next event; each call stands for one event."""
        delay = max(0.0, self._due - now)
        self._due += self._interval
        return delay


async def run(
    steps: Sequence[Step], carrier: Carrier, interval: float = 0.0, remember: Callable[[], None] | None = None
) -> None:
    """Carry out `steps`, events `interval` seconds apart; ends with the last one. Cancel it when the client has left.

    `remember` is called when the response can be continued.
    """
    loop = asyncio.get_running_loop()
    pace = Pace(interval, loop.time())
    for step in steps:
        if isinstance(step, Send):
            # Also with no interval: other connections want their turn, and a leaving client has to be
            # noticed.
            await asyncio.sleep(pace.wait(loop.time()))
            carrier.send(step)
            await carrier.wire.drain()
        elif isinstance(step, Wait):
            await asyncio.sleep(step.seconds)
        elif isinstance(step, Silence):
            await loop.create_future()
        elif isinstance(step, Remember):
            if remember is not None:
                remember()
        else:
            _act(step, carrier)


def _act(step: Act, carrier: Carrier) -> None:
    match step:
        case Accept():
            carrier.accept()
        case Begin():
            carrier.begin()
        case Refuse(refusal):
            carrier.refuse(refusal)
        case MutePongs():
            carrier.mute_pongs()
        case SplitChunks(size):
            carrier.split_chunks(size)
        case Close(code):
            carrier.close(code)
        case Reset():
            carrier.wire.reset()
        case Eof():
            carrier.wire.close()
        case End():
            carrier.end()
