"""An event loop of one seed: time jumps to the next timer, and ready tasks run in an order drawn at random.

Work belongs to a `Process`, which a context variable names. A stalled process runs nothing until it goes on, as after
SIGSTOP; a killed one never runs again, and no `finally` of it does either, as after SIGKILL.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, Protocol, TypeVar, cast

from gateway.clock import Clock
from tests.support.virtual_loop import EPOCH, Stuck

T = TypeVar("T")

# What one round of the loop takes, so that work costs some time too.
ROUND = 20e-6
# Chance that a ready task has to wait for the next round although others of this one ran.
HELD_BACK = 0.05
COLLECT_EVERY = 200_000


class Process:
    """Something that can stall or die as a whole: its tasks, its timers and its ends of connections."""

    current: ContextVar[Process | None] = ContextVar("process", default=None)

    def __init__(self, name: str) -> None:
        self.name = name
        self._loop = cast(SimLoop, asyncio.get_running_loop())
        self.alive = True
        self.stalled_at: float | None = None
        self.held: list[asyncio.Handle] = []
        self.on_kill: dict[Callable[[], None], None] = {}
        self._remains: object = None

    def __repr__(self) -> str:
        return f"<Process {self.name}>"

    @property
    def stalled(self) -> bool:
        return self.stalled_at is not None

    def context(self) -> Context:
        """A context whose tasks and timers belong to this process."""
        context = copy_context()
        context.run(self.current.set, self)
        return context

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return asyncio.get_running_loop().create_task(work, context=self.context())

    def stall(self) -> None:
        self.stalled_at = self._loop.time()

    def go_on(self) -> None:
        self.stalled_at = None
        held, self.held = self.held, []
        self._loop.ready_again(held)

    def kill(self) -> None:
        """End at once. What its tasks hold is kept, so that no collector ever runs their `finally`s."""
        self.alive = False
        self._remains = asyncio.all_tasks()
        for end in tuple(self.on_kill):
            end()
        self.on_kill.clear()


class Listener(Protocol):
    def close(self) -> None: ...


class Connector(Protocol):
    """What the loop connects through; see `tests.sim.network.Network`."""

    async def connect(self, host: str, port: int, factory: Callable[[], asyncio.Protocol]) -> asyncio.BaseTransport: ...

    def listen(self, port: int, factory: Callable[[], asyncio.Protocol]) -> Any: ...


class SimLoop(asyncio.BaseEventLoop):
    """Without files, sockets, signals and threads; `network` carries what is connected through it."""

    network: Connector

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._now = 0.0
        self._random = random
        self._rounds = 0
        # A heap of asyncio's own, in the same order; but it compares numbers, as long as two are not due together.
        self._timers: list[tuple[float, Any]] = []
        self._timers_cancelled = 0
        self._failures: list[dict[str, Any]] = []
        self._clock_resolution = 1e-9
        self.set_exception_handler(lambda _, context: self._failures.append(context))

    @property
    def failures(self) -> list[dict[str, Any]]:
        """What reached the loop's exception handler, which is nothing in a gateway without defects."""
        return self._failures

    def time(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        timer: Any = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, timer))
        timer._scheduled = True
        return timer

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: Any) -> None:
        if handle._scheduled:
            self._timers_cancelled += 1

    def ready_again(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)  # type: ignore[attr-defined]

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        transport = await self.network.connect(host, port, protocol_factory)
        return transport, cast(Any, transport).get_protocol()

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return self.network.listen(port, protocol_factory)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        raise RuntimeError("there are no threads in a simulated world")

    def _write_to_self(self) -> None:
        """Nothing sleeps that would have to be woken."""

    def _process_events(self, event_list: Any) -> None:
        """There are no files."""

    def _run_once(self) -> None:
        self._take_due_timers()
        self._now += ROUND
        self._rounds += 1
        if self._rounds % COLLECT_EVERY == 0:
            # At these rounds and no others, so that what a collector finalizes is the same in every run.
            gc.collect()
        ready = self._ready  # type: ignore[attr-defined]
        batch: list[asyncio.Handle] = list(ready)
        ready.clear()
        _shuffle_tasks(batch, ready, self._random)
        current = Process.current
        for handle in batch:
            if handle._cancelled:
                continue
            process = handle._context.get(current)  # type: ignore[attr-defined]
            if process is not None and (process.stalled or not process.alive):
                process.held.append(handle)
                continue
            handle._run()

    def _take_due_timers(self) -> None:
        self._drop_cancelled_timers()
        timers, ready = self._timers, self._ready  # type: ignore[attr-defined]
        while timers and timers[0][1]._cancelled:
            heapq.heappop(timers)[1]._scheduled = False
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not timers:
                raise Stuck("every task waits, and no timer is set")
            self._now = max(self._now, timers[0][0])
        due = self._now + 1e-9
        while timers and timers[0][0] < due:
            _, timer = heapq.heappop(timers)
            timer._scheduled = False
            if not timer._cancelled:
                ready.append(timer)

    def _drop_cancelled_timers(self) -> None:
        """Most timers are limits that nobody reaches; without this the heap would be full of them."""
        if self._timers_cancelled > max(200, len(self._timers) // 2):
            self._timers = [timer for timer in self._timers if not timer[1]._cancelled]
            heapq.heapify(self._timers)
            self._timers_cancelled = 0


def _shuffle_tasks(batch: list[asyncio.Handle], later: Any, random: Random) -> None:
    """Permute the tasks of a batch and hold some back.

    Plain callbacks keep their order, which asyncio promises and transports rely on.
    """
    if len(batch) < 2:
        return
    # Both the first step of a task and its wake-ups are bound to it.
    task = asyncio.Task
    places = [at for at, handle in enumerate(batch) if isinstance(getattr(handle._callback, "__self__", None), task)]  # type: ignore[attr-defined]
    if len(places) < 2:
        return
    order = places[:]
    random.shuffle(order)
    tasks = [batch[at] for at in order]
    for at, handle in zip(places, tasks, strict=True):
        batch[at] = handle
    if random.random() < HELD_BACK:
        at = random.choice(places)
        later.append(batch.pop(at))


def sim_clock(random: Random) -> Clock:
    """The world's time and randomness, as the gateway takes them."""
    loop = asyncio.get_running_loop()
    return Clock(monotonic=loop.time, wall=lambda: EPOCH + loop.time(), random=random)
