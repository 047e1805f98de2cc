"""Database work off the event loop, in threads of its own.

asgiref runs the thread-sensitive code of all consumers in one process-wide thread, where one slow query would
hold up every conversation. The gateway therefore gives its ORM work to this small pool, whose threads keep their
connections.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from django.db import InterfaceError, OperationalError, connections

P = ParamSpec("P")
R = TypeVar("R")


class DatabaseThreads:
    """A pool of threads that may block on the database. Close it when its event loop ends."""

    def __init__(self, threads: int = 4) -> None:
        self._threads = threads
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="gateway-db")

    async def run(self, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `work` in a thread and return its result; its exceptions come through unchanged.

        Cancelling the caller does not stop a query that is already running. Work that met a broken connection runs
        once more on a new one, so it must be safe to repeat.
        """

        def job() -> R:
            try:
                return work(*args, **kwargs)
            except (OperationalError, InterfaceError):
                # The server may have closed a connection that was kept; a database that is gone fails again.
                connections.close_all()
                return work(*args, **kwargs)

        return await asyncio.get_running_loop().run_in_executor(self._executor, job)

    def close(self) -> None:
        """Wait for running work, then close each thread's connections."""
        every = threading.Barrier(self._threads)

        def leave() -> None:
            # A thread that waits here for all the others cannot take the job of one of them as well.
            every.wait()
            connections.close_all()

        for _ in range(self._threads):
            self._executor.submit(leave)
        self._executor.shutdown(wait=True)
