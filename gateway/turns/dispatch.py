"""One turn, from admission to settlement, in one task.

The task borrows what it needs, reads its own events, learns of every loss from its own await, and settles: permit,
ledger, account, key, once, whatever happened. Nobody else settles anything; others can only `abort`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import structlog

from accounts.registry import AccountSnapshot
from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.errors import (
    AccountsLimited,
    ClientLost,
    ConnectFailed,
    GatewayError,
    OwnerGone,
    Stopping,
    UpstreamRefused,
)
from gateway.protocol.events import Event, Kind, Terminal, read_created, read_error, read_terminal
from gateway.turns.answers import answer
from gateway.turns.carriage import Carriage, Opened
from gateway.turns.catalogue import Catalogue
from gateway.turns.causes import cause_of
from gateway.turns.finish import finish_first
from gateway.turns.health import Health
from gateway.turns.ledger import Ledger
from gateway.turns.permits import Permit
from gateway.turns.record import TurnRecord
from gateway.turns.request import TurnRequest
from gateway.turns.routing import Routed, Router, Tried
from gateway.turns.sink import Sink
from gateway.turns.turn import Blame, Cause, Move, Outcome, Phase, Step, advance, decide
from gateway.turns.watch import Watch
from gateway.upstream.exchange import Exchange
from gateway.upstream.pool import LanePool

log = structlog.get_logger("gateway.turns")

# Seconds of jitter before the second and the third attempt to connect.
CONNECT_DELAYS = (0.5, 1.0)
OUTCOMES = {
    Cause.CLIENT_GONE: Outcome.CLIENT_GONE,
    Cause.CLIENT_STALLED: Outcome.CLIENT_GONE,
    Cause.UPSTREAM_LOST: Outcome.UPSTREAM_LOST,
    Cause.LIVENESS: Outcome.UPSTREAM_LOST,
    Cause.RESPONSE_START_TIMEOUT: Outcome.UPSTREAM_LOST,
    Cause.STREAM_IDLE_TIMEOUT: Outcome.UPSTREAM_LOST,
}


@dataclass(frozen=True, slots=True)
class Engine:
    """What every turn of a process shares."""

    tunables: Tunables
    clock: Clock
    router: Router
    carriage: Carriage
    pool: LanePool
    ledger: Ledger
    health: Health
    catalogue: Catalogue
    running: set[Turn] = field(default_factory=set)


class Turn:
    """One turn. Create it in the task that will `run` it, and await that to its end."""

    def __init__(self, engine: Engine, request: TurnRequest, sink: Sink, permit: Permit) -> None:
        self.phase = Phase.RECEIVED
        self.record = TurnRecord(request)
        self._engine = engine
        self._request = request
        self._sink = sink
        self._permit = permit
        self._task = asyncio.current_task()
        self._abort_error: GatewayError | None = None
        self._tried = Tried()
        self._moves: list[Cause] = []
        self._routed: Routed | None = None
        self._exchange: Exchange | None = None
        self._terminal: Terminal | None = None
        self._settling = False
        self._watch = Watch(engine.tunables, sink, self.abort)

    def abort(self, error: GatewayError) -> None:
        """End the turn with `error`, at whatever it is waiting for; without effect once it is settling."""
        if self._settling or self._abort_error is not None or self._task is None:
            return
        self._abort_error = error
        self._task.cancel()

    async def run(self) -> Outcome:
        """Carry the turn to its end and settle it. Raises nothing but a cancellation, and that after settling."""
        failure: GatewayError | None = None
        cancelled = False
        self._engine.running.add(self)
        try:
            await self._carry()
        except asyncio.CancelledError:
            # Ours comes from `abort`; any other is the server ending this task.
            cancelled = self._abort_error is None
            if not cancelled and self._task is not None:
                self._task.uncancel()
            failure = self._abort_error or Stopping("The gateway is stopping.", retry_after=2)
        except GatewayError as error:
            failure = error
        except Exception:
            # A defect of ours: the client gets a plain error, the turn is settled like any other.
            log.exception("turn_defect", turn=str(self._request.id))
            failure = GatewayError("The gateway failed on this request; it is recorded as a defect.")
        self._settling = True
        try:
            return await finish_first(self._end(failure))
        except asyncio.CancelledError:
            # An `abort` may strike after the last event was delivered; it changes nothing any more.
            if self._abort_error is None or cancelled:
                raise
            return Outcome(self.record.outcome or Outcome.FAILED)

    async def _carry(self) -> None:
        self._watch.start()
        await self._permit.granted()
        self._step(Step.ADMIT)
        while True:
            try:
                await self._attempt()
                return
            except GatewayError as error:
                await self._move_or_raise(error)

    async def _attempt(self) -> None:
        engine = self._engine
        self._routed = routed = await engine.router.route(self._request, self._tried)
        self.record.account_id, self.record.account_name = routed.account.id, routed.account.name
        self.record.attempts.append(routed.attempt)
        self._step(Step.ROUTE)
        opened = await engine.carriage.open(self._request, routed)
        self._exchange = exchange = opened.exchange
        self.record.upstream = exchange.transport
        await engine.ledger.open(self.record)
        self._step(Step.SEND)
        self._watch.sent()
        self._bound_backlog(exchange)
        await exchange.send(opened.payload)
        self._sink.upstream_headers(exchange.headers())
        await self._relay(exchange, opened)

    async def _relay(self, exchange: Exchange, opened: Opened) -> None:
        """Read and deliver until the terminal event. Per event there is nothing here but a look at its kind."""
        sink, record, watch = self._sink, self.record, self._watch
        if opened.idle_events:
            await sink.deliver(opened.idle_events)
        while True:
            watch.waiting()
            events = self._take(await exchange.receive(), exchange)
            watch.delivering()
            record.events += len(events)
            if self._terminal is not None:
                await sink.end_silence()
            await sink.deliver(events)
            if self.phase is Phase.STARTED:
                self._step(Step.STREAM)
            if self._terminal is not None:
                return

    def _take(self, events: list[Event], exchange: Exchange) -> list[Event]:
        """Note what the events mean; after a terminal one nothing follows, since the client would take it for its
        next response's."""
        for position, event in enumerate(events):
            self.record.response_bytes += len(event.data)
            if event.kind is not Kind.OTHER or self.phase is Phase.SENT:
                self._observe(event, exchange)
                if self._terminal is not None:
                    return events[: position + 1]
        return events

    def _observe(self, event: Event, exchange: Exchange) -> None:
        """Read an event that means something to the gateway; raises `UpstreamRefused` when it is a refusal."""
        if event.kind is Kind.METADATA:
            return
        if self.phase is Phase.SENT:
            if event.kind is Kind.ERROR:
                raise UpstreamRefused(read_error(event, self._engine.clock.wall()))
            self._step(Step.START)
            self._watch.started()
            if self._routed is not None:
                self._engine.router.bind(self._request, self._routed.account.id)
        if event.kind is Kind.CREATED:
            self.record.response_id = read_created(event) or ""
        elif event.kind in (Kind.TERMINAL, Kind.ERROR):
            self._terminal = self._read_end(event)
            self._publish(exchange, self._terminal)

    def _read_end(self, event: Event) -> Terminal:
        if event.kind is Kind.TERMINAL:
            return read_terminal(event)
        refusal = read_error(event, self._engine.clock.wall())
        return Terminal(event.type, "failed", error_code=refusal.code, error_message=refusal.message)

    def _publish(self, exchange: Exchange, terminal: Terminal) -> None:
        """Before the client can see the terminal event, what continues the response must find its owner."""
        if terminal.response_id is not None:
            self.record.response_id = terminal.response_id
            if terminal.status == "completed":
                exchange.publish(terminal.response_id)

    async def _move_or_raise(self, error: GatewayError) -> None:
        """Leave the failed attempt for another one, or raise what the client has to be told."""
        cause = cause_of(error)
        decision = decide(self.phase, cause, self._request.kind, self._moves)
        account = None if self._routed is None else self._routed.account
        if account is not None:
            self._note(cause, decision.move)
            self._engine.health.report(account, decision.blame, error)
        if decision.move is Move.RESEND and (decision.blame is Blame.NONE or self._engine.router.usable_elsewhere()):
            raise OwnerGone(
                "The account that owns this conversation cannot take it any more; send the full input."
            ) from error
        if account is None or decision.move not in (Move.SAME, Move.ELSEWHERE):
            raise error
        self._moves.append(cause)
        await self._leave_account()
        self._step(Step.REROUTE)
        self._exclude(account, cause, decision.move, error)

    def _exclude(self, account: AccountSnapshot, cause: Cause, move: Move, error: GatewayError) -> None:
        """Note what the account said, and make sure that there is another one before going on."""
        if move is not Move.ELSEWHERE:
            return
        if isinstance(error, ConnectFailed):
            self._tried.unreachable[account.id] = str(cause)
            return
        self._tried.refused[account.id] = str(cause)
        nobody = self._engine.router.why_nobody(self._request, self._tried)
        if nobody is not None:
            raise nobody if isinstance(nobody, AccountsLimited) else error

    def _note(self, cause: Cause, move: Move) -> None:
        if self.record.attempts:
            attempt = self.record.attempts[-1]
            attempt["cause"], attempt["move"], attempt["at_ms"] = cause, move, self._elapsed_ms()

    async def _leave_account(self) -> None:
        """End the failed attempt: its exchange first, then the account's stream."""
        self._watch.left()
        exchange, self._exchange = self._exchange, None
        routed, self._routed = self._routed, None
        try:
            if exchange is not None:
                await exchange.close(clean=False)
        finally:
            if routed is not None:
                routed.stream.release()
        failures = self._moves.count(Cause.CONNECT_FAILED)
        if self._moves[-1] is Cause.CONNECT_FAILED:
            await asyncio.sleep(self._engine.clock.random.uniform(0, CONNECT_DELAYS[min(failures, 2) - 1]))

    async def _end(self, failure: GatewayError | None) -> Outcome:
        """Tell the client, end the upstream's work, then give back and write down. Runs once, to its end."""
        self._watch.left()
        if self._terminal is not None:
            # The answer was complete; what happened to its delivery does not change what the turn was.
            failure = None
        if failure is not None:
            await self._tell(failure)
        self._watch.stop()
        await self._sink.end_silence()
        try:
            if self._exchange is not None:
                await self._exchange.close(clean=self._terminal is not None)
        except Exception:
            # Whatever a close does, the places below must be given back.
            log.exception("close_failed", turn=str(self._request.id))
        return self._settle(failure)

    async def _tell(self, failure: GatewayError) -> None:
        told = answer(failure, self._request.route)
        self.record.code, self.record.status = told.code or told.type, told.status
        if isinstance(failure, ClientLost):
            return
        try:
            async with asyncio.timeout(self._engine.tunables.client_stall_timeout):
                await self._sink.refuse(told)
        except (ClientLost, TimeoutError):
            # The client will not hear it; the ledger keeps the reason.
            pass

    def _settle(self, failure: GatewayError | None) -> Outcome:
        """Permit, ledger, in that order; the account's health was reported when it failed."""
        if self._routed is not None:
            self._routed.stream.release()
        self._permit.release()
        self._step(Step.SETTLE)
        self.record.outcome = self._outcome(failure)
        self._engine.ledger.close(self.record)
        self._engine.running.discard(self)
        return self.record.outcome

    def _outcome(self, failure: GatewayError | None) -> Outcome:
        record = self.record
        if self._terminal is not None:
            record.usage = self._terminal.usage
            record.code = self._terminal.error_code or record.code
            return Outcome(self._terminal.status)
        if failure is None:
            raise AssertionError("a turn ended without a terminal event and without a failure")
        cause = cause_of(failure)
        record.cause = cause
        sent = Phase.SENT in record.phases
        default = Outcome.FAILED if sent and cause is Cause.INTERNAL else Outcome.REFUSED
        return OUTCOMES.get(cause, default)

    def _bound_backlog(self, exchange: Exchange) -> None:
        """A lane is never paused for a slow client; beyond its share of memory the client is cut instead."""
        limit = self._engine.tunables.client_buffer_bytes

        def grew(size: int) -> None:
            if size > limit:
                self.abort(
                    ClientLost(
                        "The client has fallen behind by more than GATEWAY_CLIENT_BUFFER_BYTES.",
                        code="client_too_slow",
                    )
                )

        exchange.watch_backlog(grew)

    def _step(self, step: Step) -> None:
        self.phase = advance(self.phase, step)
        self.record.phases.setdefault(self.phase, self._elapsed_ms())

    def _elapsed_ms(self) -> int:
        return max(0, round((self._engine.clock.wall() - self._request.received_at) * 1000))
