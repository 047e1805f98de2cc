"""Database work off the event loop, in threads of its own.

asgiref runs the thread-sensitive code of all consumers in one process-wide thread, where one slow query would
hold up every conversation. The gateway therefore gives its ORM work to this small pool, whose threads keep their
connections.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from django.db import InterfaceError, OperationalError, connection, connections

P = ParamSpec("P")
R = TypeVar("R")


# Bytes of the smallest page that SQLite knows.
SMALLEST_DATABASE = 512


class DatabaseFile:
    """Notices that the file of an SQLite database is no longer the one that was opened.

    A process goes on writing into a file that was deleted, or emptied, as if nothing had happened; all is lost at
    its end.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._opened = self._identity()

    def problem(self) -> str:
        """What is wrong with the file, empty if nothing is; without a file, as on a server, nothing can be."""
        if self._path is None:
            return ""
        if self._opened is None:
            self._opened = self._identity()
        # Never opened here: closing it would end every lock that SQLite holds on it for this process (fcntl(2)).
        found = self._look()
        if found is None or (found.st_dev, found.st_ino) != self._opened:
            return "the database file was deleted or replaced; stop the gateway and restore the file"
        whole = found.st_size >= SMALLEST_DATABASE
        return "" if whole else "the database file was emptied; stop the gateway and restore the file"

    def _identity(self) -> tuple[int, int] | None:
        found = self._look()
        return None if found is None else (found.st_dev, found.st_ino)

    def _look(self) -> os.stat_result | None:
        try:
            return os.stat(self._path or "")
        except OSError:
            return None


def database_file() -> str | None:
    """The path of the SQLite database that the settings name, None for a server or a database in memory."""
    if connection.vendor != "sqlite":
        return None
    name = str(connection.settings_dict["NAME"])
    return None if ":memory:" in name or "mode=memory" in name else name


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
