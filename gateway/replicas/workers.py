"""Several gateway processes on one listening socket, kept alive by this one.

The supervisor takes no traffic. It owns the socket, so that no connection is refused while a worker is replaced: a
worker that dies is started anew, and a SIGHUP replaces all of them one after the other. Each worker is a replica of
its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import structlog

log = structlog.get_logger("gateway.replicas.workers")

# A worker tells through this descriptor that it takes connections.
READY_FD = "GATEWAY_READY_FD"
READY_TIMEOUT = 60.0
# A worker that dies sooner than this is not started anew at once.
SHORT_LIFE = 5.0
RESTART_DELAY = 1.0


@dataclass(eq=False, slots=True)
class Worker:
    """One running process, and whether its end is wanted."""

    process: asyncio.subprocess.Process
    started_at: float
    expected_to_end: bool = False


@dataclass(slots=True)
class Supervisor:
    """Runs `count` workers on `listener` until SIGTERM or SIGINT; `command` starts one, given the socket's number.

    `on_death` is awaited with the process id of a worker that ended by itself, before another takes its place.
    """

    listener: socket.socket
    count: int
    command: Callable[[int], Sequence[str]]
    on_death: Callable[[int], Awaitable[None]]
    _workers: set[Worker] = field(default_factory=set)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self, ready: Callable[[], None]) -> None:
        """Start the workers, call `ready` when all of them take connections, and return when all have ended."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._spawn(self._replace_all()))
        await asyncio.gather(*(self._start() for _ in range(self.count)))
        ready()
        await self._stopping.wait()
        self.listener.close()
        while self._workers:
            await asyncio.wait([asyncio.ensure_future(worker.process.wait()) for worker in self._workers])

    def _stop(self) -> None:
        """Pass the signal on; a second one reaches the workers too, and ends their drain."""
        self._stopping.set()
        for worker in tuple(self._workers):
            worker.expected_to_end = True
            self._signal(worker, signal.SIGTERM)

    async def _start(self) -> Worker:
        """Start a worker and wait until it takes connections; raises `RuntimeError` when it does not get there."""
        reading, writing = os.pipe()
        number = self.listener.fileno()
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command(number), pass_fds=(number, writing), env={**os.environ, READY_FD: str(writing)}
            )
        finally:
            os.close(writing)
        worker = Worker(process, asyncio.get_running_loop().time())
        self._workers.add(worker)
        if self._stopping.is_set():
            # The signal came while the process was being made, and did not reach it.
            worker.expected_to_end = True
            self._signal(worker, signal.SIGTERM)
        self._spawn(self._watch(worker))
        if not await _becomes_ready(reading):
            raise RuntimeError(f"Worker {process.pid} did not start; its own output says why.")
        return worker

    async def _watch(self, worker: Worker) -> None:
        """Wait for the worker's end; unless that is wanted, start another."""
        code = await worker.process.wait()
        self._workers.discard(worker)
        if worker.expected_to_end or self._stopping.is_set():
            return
        log.error("worker_died", worker=worker.process.pid, exit_code=code)
        await self.on_death(worker.process.pid)
        if asyncio.get_running_loop().time() - worker.started_at < SHORT_LIFE:
            await asyncio.sleep(RESTART_DELAY)
        if not self._stopping.is_set():
            await self._start()

    async def _replace_all(self) -> None:
        """Replace the workers one after the other: the new one takes connections before the old one stops."""
        for old in tuple(self._workers):
            if self._stopping.is_set():
                return
            await self._start()
            old.expected_to_end = True
            self._signal(old, signal.SIGTERM)
            await old.process.wait()
        log.info("workers_replaced", workers=len(self._workers))

    def _signal(self, worker: Worker, number: signal.Signals) -> None:
        try:
            worker.process.send_signal(number)
        except ProcessLookupError:
            # It has just ended by itself.
            pass

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("supervision_failed", error=str(task.exception()))


async def _becomes_ready(reading: int) -> bool:
    """Whether the worker wrote to its end of the pipe, which closes when the worker ends."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def became_readable() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(reading, became_readable)
    try:
        async with asyncio.timeout(READY_TIMEOUT):
            await readable
        return os.read(reading, 1) != b""
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(reading)
        os.close(reading)


def is_worker() -> bool:
    """Whether a supervisor has started this process and waits to be told that it is ready."""
    return READY_FD in os.environ


def tell_ready() -> None:
    """Called by a worker that takes connections now; without a supervisor it does nothing."""
    number = os.environ.pop(READY_FD, None)
    if number is not None:
        os.write(int(number), b"1")
        os.close(int(number))


def worker_command(number: int) -> list[str]:
    """How this very program is started again as a worker on an inherited socket."""
    return [sys.executable, sys.argv[0], "serve", "--fd", str(number)]
