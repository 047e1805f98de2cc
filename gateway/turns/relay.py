"""Events on their way from an upstream to a client, until the terminal one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from gateway.errors import UpstreamRefused
from gateway.protocol.chain import chain_of
from gateway.protocol.events import (
    Event,
    Kind,
    Terminal,
    item_of_done,
    read_created,
    read_error,
    read_metadata_headers,
    read_terminal,
)
from gateway.turns.record import TurnRecord
from gateway.turns.sink import Sink
from gateway.turns.turn import Phase, Step
from gateway.turns.watch import Watch
from gateway.upstream.exchange import Exchange

RATE_LIMITS = "codex.rate_limits"
METADATA = "response.metadata"


class Hearing(Protocol):
    """Who wants to know what the events say about the account."""

    def told_limits(self, event: Event) -> None:
        """A `codex.rate_limits` event has come."""

    def told_headers(self, headers: Mapping[str, str]) -> None:
        """A `response.metadata` event has come, with what would be headers over HTTP."""

    def completed(self, response_id: str) -> None:
        """The response is complete; its client does not know that yet."""


class Relay:
    """Reads one exchange in the turn's own task. `terminal` is set before the client can see the terminal event.

    Per event there is no decoding, no query, no log line and no other task: only a look at its kind.
    """

    def __init__(self, record: TurnRecord, sink: Sink, watch: Watch, account: Hearing) -> None:
        self.terminal: Terminal | None = None
        # A client with a WebSocket of its own sends deltas itself; what others send in full may be made into one.
        self._keeps_items = record.request.socket is None
        self._items: list[bytes] = []
        self._record = record
        self._sink = sink
        self._watch = watch
        self._account = account

    async def run(self, exchange: Exchange, idle_events: list[Event]) -> None:
        """Deliver everything, first what came while the lane was idle; returns after the terminal event.

        Raises `UpstreamError`s and `ClientLost`.
        """
        record, sink, watch = self._record, self._sink, self._watch
        if idle_events:
            await sink.deliver(self._take(idle_events, exchange))
        time = asyncio.get_running_loop().time
        while True:
            events = self._take(await exchange.receive(), exchange)
            if record.phase is Phase.SENT:
                # Metadata is no start: the upstream's time for one goes on.
                await sink.deliver(events)
                continue
            watch.waiting_since = None
            if self.terminal is not None:
                await sink.end_silence()
            await sink.deliver(events)
            if record.phase is Phase.STARTED:
                record.step(Step.STREAM)
            if self.terminal is not None:
                self._remember(exchange)
                return
            watch.waiting_since = time()

    def _take(self, events: list[Event], exchange: Exchange) -> list[Event]:
        """Note what the events mean.

        Nothing follows a terminal event: the client would take it for an event of its next response.
        """
        record = self._record
        for position, event in enumerate(events):
            record.response_bytes += len(event.data) or len(event.raw)
            record.events += event.count
            if event.kind is not Kind.OTHER or record.phase is Phase.SENT:
                self._observe(event, exchange)
                if self.terminal is not None:
                    return events[: position + 1]
        return events

    def _observe(self, event: Event, exchange: Exchange) -> None:
        """Read an event that means something to the gateway; raises `UpstreamRefused` when it is a refusal."""
        if event.kind is Kind.METADATA:
            if event.type == RATE_LIMITS:
                self._account.told_limits(event)
            elif event.type == METADATA:
                self._account.told_headers(read_metadata_headers(event))
            return
        if event.kind is Kind.ITEM and self._keeps_items:
            self._items.append(item_of_done(event))
        if self._record.phase is Phase.SENT:
            if event.kind is Kind.ERROR:
                raise UpstreamRefused(read_error(event, self._record.clock.wall()))
            self._record.step(Step.START)
            self._watch.started()
        if event.kind is Kind.CREATED:
            self._record.response_id = read_created(event) or ""
        elif event.kind in (Kind.TERMINAL, Kind.ERROR):
            self.terminal = self._read_end(event)
            self._publish(exchange, self.terminal)

    def _read_end(self, event: Event) -> Terminal:
        if event.kind is Kind.TERMINAL:
            return read_terminal(event)
        refusal = read_error(event, self._record.clock.wall())
        return Terminal(event.type, "failed", error_code=refusal.code, error_message=refusal.message)

    def _remember(self, exchange: Exchange) -> None:
        """Note on the exchange what a later full request would have to extend."""
        terminal, request = self.terminal, self._record.request
        if self._keeps_items and exchange.transport == "websocket" and terminal is not None:
            done = terminal.status == "completed" and terminal.response_id is not None
            exchange.remember(chain_of(request.body, terminal.response_id or "", self._items) if done else None)

    def _publish(self, exchange: Exchange, terminal: Terminal) -> None:
        """Before the client can see the terminal event, what continues the response must find its owner."""
        if terminal.response_id is not None:
            self._record.response_id = terminal.response_id
            if terminal.status == "completed":
                exchange.publish(terminal.response_id)
                self._account.completed(terminal.response_id)
