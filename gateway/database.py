"""Database work off the event loop, in threads of its own.

asgiref runs the thread-sensitive code of all consumers in one process-wide thread, where one slow query would
hold up every conversation. The gateway therefore gives its ORM work to this small pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from django.db import close_old_connections, connections

P = ParamSpec("P")
R = TypeVar("R")


class DatabaseThreads:
    """A pool of threads that may block on the database. Close it when its event loop ends."""

    def __init__(self, threads: int = 4) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="gateway-db")

    async def run(self, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `work` in a thread and return its result; its exceptions come through unchanged.

        Cancelling the caller does not stop a query that is already running.
        """

        def job() -> R:
            close_old_connections()
            try:
                return work(*args, **kwargs)
            finally:
                close_old_connections()

        return await asyncio.get_running_loop().run_in_executor(self._executor, job)

    def close(self) -> None:
        """Wait for running work, then close each thread's connections."""
        for _ in range(self._executor._max_workers):
            self._executor.submit(connections.close_all)
        self._executor.shutdown(wait=True)
