"""Listening to a stored response: its events from the account that makes or keeps it, to a client that asked for them.

Nothing runs for it here, so it is no turn: no permit, no row in the ledger. A client that leaves ends the listening
alone, and one that comes back says after which event it wants to go on (`starting_after`).
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from gateway.conf import Tunables
from gateway.errors import ClientLost, GatewayError, UpstreamEnded
from gateway.protocol.events import ENDS, Event
from gateway.turns.answers import answer
from gateway.turns.request import Route
from gateway.turns.sink import Sink
from gateway.turns.stored import StoredCall, StoredCalls
from gateway.turns.watch import Watch
from gateway.upstream.exchange import Exchange


class FollowingSink(Sink, Protocol):
    """A way to the client that may also end without a terminal event."""

    async def finish(self) -> None:
        """There are no more events; the account has ended its stream in good order."""


class Following:
    """One client's listening. Create it in the task that will `run` it."""

    def __init__(self, stored: StoredCalls, call: StoredCall, sink: FollowingSink, tunables: Tunables) -> None:
        self._stored = stored
        self._call = call
        self._sink = sink
        self._watch = Watch(tunables, sink.tick, self.abort)
        self._task = asyncio.current_task()
        self._abort_error: GatewayError | None = None
        self._patience = tunables.close_timeout

    def abort(self, error: GatewayError) -> None:
        """End it with `error`, at whatever it is waiting for."""
        if self._abort_error is None and self._task is not None:
            self._abort_error = error
            self._task.cancel()

    def goes_on_alone(self) -> bool:
        return False

    async def run(self) -> None:
        """Pass events on until the terminal one. Whatever goes wrong the client is told, unless it is lost."""
        try:
            async with self._stored.followed(self._call) as exchange:
                await self._pass_on(exchange)
        except ClientLost:
            pass
        except asyncio.CancelledError:
            if self._abort_error is None or self._task is None:
                raise
            self._task.uncancel()
            await self._tell(self._abort_error)
        except GatewayError as error:
            await self._tell(error)
        finally:
            self._watch.stop()

    async def _pass_on(self, exchange: Exchange) -> None:
        self._watch.start()
        self._watch.sent()
        await exchange.send(b"")
        self._sink.upstream_headers(exchange.headers())
        events = await exchange.receive()
        self._watch.started()
        while not await self._deliver(events):
            self._watch.waiting_since = asyncio.get_running_loop().time()
            events = await exchange.receive()

    async def _deliver(self, events: list[Event]) -> bool:
        """Give the client these events; whether the last one of all was among them."""
        self._watch.left()
        last = next((place for place, event in enumerate(events) if event.kind in ENDS), None)
        if last is None:
            await self._sink.deliver(events)
            return False
        await self._sink.end_silence()
        await self._sink.deliver(events[: last + 1])
        return True

    async def _tell(self, error: GatewayError) -> None:
        """Say why there are no more events, to a client that may not take it."""
        self._watch.stop()
        if isinstance(error, ClientLost):
            return
        try:
            async with asyncio.timeout(self._patience):
                await (self._sink.finish() if isinstance(error, UpstreamEnded) else self._refuse(error))
        except (ClientLost, TimeoutError):
            pass

    async def _refuse(self, error: GatewayError) -> None:
        await self._sink.refuse(answer(error, Route.V1))
