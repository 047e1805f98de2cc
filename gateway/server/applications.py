"""The applications that are running, one per request or WebSocket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from asgiref.typing import ASGI3Application, ASGIReceiveEvent, ASGISendEvent, HTTPScope, WebSocketScope

from gateway.server.errors import ClientDisconnected

logger = logging.getLogger(__name__)


class Inbound(Protocol):
    """Where an application's messages come from."""

    @property
    def receive(self) -> Callable[[], Awaitable[ASGIReceiveEvent]]: ...


class Connection(Protocol):
    """A request or WebSocket, as its application sees it."""

    @property
    def inbox(self) -> Inbound: ...

    async def send(self, message: ASGISendEvent) -> None: ...

    def application_ended(self) -> None:
        """Called once when the application is over, however it ended."""


class Applications:
    """Starts applications, reports their end at once, and cancels those that outstay their client."""

    def __init__(self, application: ASGI3Application, close_timeout: float) -> None:
        self._application = application
        self._close_timeout = close_timeout
        self._tasks: dict[Connection, asyncio.Task[None]] = {}
        self._deadlines: dict[Connection, asyncio.TimerHandle] = {}

    def start(self, connection: Connection, scope: HTTPScope | WebSocketScope) -> None:
        """Run the application for `connection`, whose `application_ended` is called after it."""
        task = asyncio.get_running_loop().create_task(self._run(connection, scope))
        self._tasks[connection] = task
        task.add_done_callback(partial(self._ended, connection))

    def client_left(self, connection: Connection) -> None:
        """Give the application of `connection`, if it has one, the close timeout to end by itself."""
        if connection in self._tasks and connection not in self._deadlines:
            self._deadlines[connection] = asyncio.get_running_loop().call_later(
                self._close_timeout, self._cancel_late, self._tasks[connection]
            )

    async def cancel_all(self, timeout: float) -> None:
        """Cancel every application and wait up to `timeout` seconds for them to end."""
        tasks = set(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            _, running = await asyncio.wait(tasks, timeout=timeout)
            if running:
                logger.error("%d applications did not end within %g s of being cancelled.", len(running), timeout)

    async def _run(self, connection: Connection, scope: HTTPScope | WebSocketScope) -> None:
        await self._application(scope, connection.inbox.receive, connection.send)

    def _ended(self, connection: Connection, task: asyncio.Task[None]) -> None:
        del self._tasks[connection]
        deadline = self._deadlines.pop(connection, None)
        if deadline is not None:
            deadline.cancel()
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ClientDisconnected):
            logger.error("An application failed.", exc_info=error)
        connection.application_ended()

    def _cancel_late(self, task: asyncio.Task[None]) -> None:
        logger.warning(
            "An application did not end within %g s after its client left, and is cancelled.", self._close_timeout
        )
        task.cancel()
