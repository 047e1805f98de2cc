"""The clock of one turn: one timer that notices a silent upstream or client, and keeps the client informed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.conf import Tunables
from gateway.errors import GatewayError, UpstreamSilent


class Watch:
    """Aborts its turn through `abort` when a limit passes. `start` it once, `stop` it before the turn settles.

    `tick` looks after the client, as `Sink.tick` does.

    The relay only notes in `waiting_since` (the loop's time) when it began to wait for the next events, and None while
    events are on their way to the client, whose slowness is not the upstream's. No timer is touched per event.
    """

    def __init__(
        self, tunables: Tunables, tick: Callable[[float], float], abort: Callable[[GatewayError], None]
    ) -> None:
        self._start_limit = tunables.response_start_timeout
        self._idle_limit = tunables.stream_idle_timeout
        self._tick_client = tick
        self._abort = abort
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._started = False
        self.waiting_since: float | None = None

    def start(self) -> None:
        self._tick()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def sent(self) -> None:
        """The request is on its way: the upstream has `RESPONSE_START_TIMEOUT` for its first event."""
        self._started = False
        self.waiting_since = self._loop.time()

    def started(self) -> None:
        """The response has begun: from now on the upstream has `STREAM_IDLE_TIMEOUT` for each event."""
        self._started = True
        due = self._loop.time() + self._idle_limit
        if self._timer is not None and self._timer.when() > due:
            # It was set when nothing was due that soon.
            self._timer.cancel()
            self._timer = self._loop.call_at(due, self._tick)

    def left(self) -> None:
        """No upstream is being waited for."""
        self.waiting_since = None

    def _tick(self) -> None:
        now = self._loop.time()
        try:
            due = min(self._tick_client(now), self._check_upstream(now))
        except GatewayError as error:
            self._timer = None
            self._abort(error)
            return
        self._timer = self._loop.call_later(max(due, 0.01), self._tick)

    def _check_upstream(self, now: float) -> float:
        """Seconds until the upstream's silence is too long, as far as can be known now; raises `UpstreamSilent`."""
        limit = self._idle_limit if self._started else self._start_limit
        if self.waiting_since is None:
            return limit
        left = self.waiting_since + limit - now
        if left > 0:
            return left
        if self._started:
            raise UpstreamSilent(
                "The upstream sent no event within GATEWAY_STREAM_IDLE_TIMEOUT.", code="stream_idle_timeout"
            )
        raise UpstreamSilent("The upstream started no response within GATEWAY_RESPONSE_START_TIMEOUT.")
