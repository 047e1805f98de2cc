"""Events on their way from an upstream to a client, until the terminal one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from gateway.errors import UpstreamRefused
from gateway.protocol.chain import chain_of
from gateway.protocol.events import (
    DOCUMENT,
    ENDS,
    Event,
    Kind,
    Terminal,
    item_of_done,
    read_bond,
    read_created,
    read_document,
    read_error,
    read_metadata_headers,
    read_sealed,
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

    def told_item(self, sealed: str | None) -> None:
        """An item is done that no other account can read; the fingerprint of its encrypted content, if it has any."""

    async def begun(self) -> None:
        """A response in the background has begun; its client does not know that yet."""

    def shown_metadata(self, event: Event) -> Event:
        """A `response.metadata` event as its client may see it."""

    def completed(self, response_id: str) -> None:
        """The response is complete; its client does not know that yet."""


class Relay:
    """Reads one exchange in the turn's own task. `terminal` is set before the client can see the terminal event.

    Per event there is no decoding, no query, no log line and no other task: only a look at its kind. While the task
    waits for an event that means something, those that only have to be carried go past it (`_pass_on`).
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
        self._time = asyncio.get_running_loop().time

    async def run(self, exchange: Exchange, idle_events: list[Event]) -> None:
        """Deliver everything, first what came while the lane was idle; returns after the terminal event.

        Raises `UpstreamError`s and `ClientLost`.
        """
        record, sink, watch = self._record, self._sink, self._watch
        if idle_events:
            await self._deliver_early(self._take(idle_events, exchange))
        while True:
            pass_on = self._pass_on if record.phase is Phase.STREAMING else None
            events = self._take(await exchange.receive(pass_on), exchange)
            if record.phase is Phase.SENT:
                await self._deliver_early(events)
                continue
            watch.waiting_since = None
            if not events:
                watch.waiting_since = self._time()
                continue
            if record.phase is Phase.STARTED and record.request.body.background:
                await self._account.begun()
            if self.terminal is not None:
                await sink.end_silence()
            await sink.deliver(events)
            if record.phase is Phase.STARTED:
                record.step(Step.STREAM)
            if self.terminal is not None:
                self._remember(exchange)
                return
            watch.waiting_since = self._time()

    async def _deliver_early(self, events: Sequence[Event]) -> None:
        """Metadata is no start: the upstream's time for one goes on, but not while the client is slow to take it."""
        watch, since, began = self._watch, self._watch.waiting_since, self._time()
        watch.waiting_since = None
        await self._sink.deliver(events)
        watch.waiting_since = None if since is None else since + self._time() - began

    def _pass_on(self, events: Sequence[Event]) -> bool:
        """Let plain events through to the client, if it takes them at once."""
        if not self._sink.pass_on(events):
            return False
        record = self._record
        for event in events:
            record.response_bytes += len(event.data) or len(event.raw)
            record.events += event.count
        self._watch.waiting_since = self._time()
        return True

    def _take(self, events: list[Event], exchange: Exchange) -> list[Event]:
        """Note what the events mean.

        Nothing follows a terminal event: the client would take it for an event of its next response.
        """
        record, taken = self._record, []
        for event in events:
            record.response_bytes += len(event.data) or len(event.raw)
            record.events += event.count
            means = event.kind is not Kind.OTHER or record.phase is Phase.SENT
            if means and not self._observe(event, exchange):
                continue
            is_shown = event.kind is Kind.METADATA and event.type == METADATA
            taken.append(self._account.shown_metadata(event) if is_shown else event)
            if self.terminal is not None:
                break
        return taken

    def _observe(self, event: Event, exchange: Exchange) -> bool:
        """Read an event that means something to the gateway; raises `UpstreamRefused` when it is a refusal.

        False when it is the end of another response, said twice, which is nothing to this turn's client.
        """
        if event.kind is Kind.METADATA:
            if event.type == RATE_LIMITS:
                self._account.told_limits(event)
            elif event.type == METADATA:
                self._account.told_headers(read_metadata_headers(event))
            return True
        if event.kind is Kind.ITEM:
            self._note_item(event)
        if self._record.phase is Phase.SENT:
            if event.kind is Kind.ERROR:
                raise UpstreamRefused(read_error(event, self._record.clock.wall()))
            self._record.step(Step.START)
            self._watch.started()
        if event.kind is Kind.CREATED:
            self._record.response_id = read_created(event) or ""
        elif event.kind in ENDS:
            if event.type == DOCUMENT:
                for sealed in read_sealed(event):
                    self._account.told_item(sealed)
            terminal = self._read_end(event)
            if self._record.response_id and terminal.response_id not in (None, self._record.response_id):
                return False
            self.terminal = terminal
            self._publish(exchange, terminal)
        return True

    def _note_item(self, event: Event) -> None:
        if self._keeps_items:
            self._items.append(item_of_done(event))
        bound, sealed = read_bond(event)
        if bound:
            self._account.told_item(sealed)

    def _read_end(self, event: Event) -> Terminal:
        if event.kind is Kind.TERMINAL:
            return read_document(event) if event.type == DOCUMENT else read_terminal(event)
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
                self._record.anchored = exchange.publish(terminal.response_id)
                self._account.completed(terminal.response_id)
