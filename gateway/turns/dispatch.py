"""One turn, from admission to settlement, in one task.

The task borrows what it needs, reads its own events, learns of every loss from its own await, and settles: permit,
ledger, account, key, once, whatever happened. Nobody else settles anything; others can only `abort`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol, cast

import structlog

from accounts.registry import AccountSnapshot
from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.continuity.leases import LeaseKey, Tenure
from gateway.continuity.sessions import Session
from gateway.diagnostics import Trace, turn_span
from gateway.errors import (
    AccountsLimited,
    ConnectFailed,
    GatewayError,
    LedgerUnavailable,
    OwnerGone,
    Stopping,
    UpstreamError,
)
from gateway.finish import finish_first
from gateway.metering.prices import PriceList
from gateway.protocol.events import Event, Terminal, read_metadata_headers, with_metadata_headers
from gateway.protocol.headers import MODEL, TURN_STATE
from gateway.turns.backlog import Backlogs
from gateway.turns.carriage import Carriage
from gateway.turns.catalogue import Catalogue
from gateway.turns.causes import cause_of
from gateway.turns.choosing import Tried
from gateway.turns.health import Health, Renewal, Trial
from gateway.turns.ledger import Ledger
from gateway.turns.permits import Permit
from gateway.turns.record import Attempt, TurnRecord
from gateway.turns.relay import Relay
from gateway.turns.request import TurnRequest
from gateway.turns.routing import Routed, Router
from gateway.turns.settle import patience_with, report, spent, tell, write_outcome
from gateway.turns.sink import Sink
from gateway.turns.stored import StoredCalls
from gateway.turns.turn import MOVABLE, Blame, BodyKind, Cause, Decision, Move, Outcome, Phase, Step, decide
from gateway.turns.watch import Watch
from gateway.upstream.exchange import Exchange
from gateway.upstream.lane import LaneKey
from gateway.upstream.pool import LanePool

log = structlog.get_logger("gateway.turns")

# The account has the request, and its response has not ended.
RUNNING = (Phase.SENT, Phase.STARTED, Phase.STREAMING)
# Seconds of jitter before the second and the third attempt to connect.
CONNECT_DELAYS = (0.5, 1.0)
# Refusals after which an account is out for long, so that a conversation may be permitted to leave it.
LASTING = frozenset({Cause.USAGE_LIMIT, Cause.UNAUTHORIZED})
# Codes of a `response.failed` that are the upstream's fault, not the request's.
FAULTS = frozenset({"server_error", "rate_limit_exceeded", "slow_down"})


class Owned(Protocol):
    """Which conversations are this process's."""

    def lease_of(self, lane: LaneKey | None) -> LeaseKey | None:
        """The lease that a turn on a lane needs, if others could continue there."""

    def tenure(self, lease: LeaseKey | None) -> Tenure | None:
        """The proof of owning a lease, None without one."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What every turn of a process shares. `running` are the turns that run, the oldest first."""

    replica: str
    tunables: Tunables
    clock: Clock
    router: Router
    carriage: Carriage
    pool: LanePool
    ledger: Ledger
    owned: Owned
    health: Health
    catalogue: Catalogue
    stored: StoredCalls
    running: dict[Turn, None]
    backlogs: Backlogs
    prices: PriceList


class Turn:
    """One turn. Create it in the task that will `run` it, and await that to its end."""

    def __init__(self, engine: Engine, request: TurnRequest, sink: Sink, permit: Permit) -> None:
        self.record = TurnRecord(request, engine.clock)
        self._engine = engine
        self._request = request
        self._sink = sink
        self._permit = permit
        self._task = asyncio.current_task()
        self._abort_error: GatewayError | None = None
        self._settling = False
        self._patience: asyncio.Timeout | None = None
        self._looked_at = 0
        self._implicit = False
        self._trial: Trial | None = None
        self._tried = Tried()
        self._moves: list[Cause] = []
        self._routed: Routed | None = None
        self._exchange: Exchange | None = None
        self._watch = Watch(engine.tunables, sink.tick, self.abort)
        self._relay = Relay(self.record, sink, self._watch, self)

    def abort(self, error: GatewayError) -> None:
        """End the turn with `error`, at whatever it is waiting for.

        Once it is settling, that the process stops shortens what its client may take, and nothing else has an effect.
        """
        if self._settling and isinstance(error, Stopping):
            self._hurry()
        if self._settling or self._abort_error is not None or self._task is None:
            return
        self._abort_error = error
        self._task.cancel()

    async def run(self) -> Outcome:
        """Carry the turn to its end and settle it. Raises nothing but a cancellation, and that after settling."""
        with turn_span(str(self._request.id)):
            return await self._run()

    async def _run(self) -> Outcome:
        failure: GatewayError | None = None
        cancelled = False
        self._engine.running[self] = None
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
        finally:
            if failure is not None:
                # The frames in it hold the failure itself, the turn and its body: a cycle, which frees nothing in time.
                failure.__traceback__ = None

    async def _carry(self) -> None:
        self._watch.start()
        await self._permit.granted()
        self.record.step(Step.ADMIT)
        while True:
            try:
                await self._attempt()
                return
            except GatewayError as error:
                await self._move_or_raise(error)

    async def _attempt(self) -> None:
        engine, record = self._engine, self.record
        self._routed = routed = await engine.router.route(self._request, self._tried)
        self._trial = engine.health.begin(routed.account, self._request.id, self._request.body.model)
        record.account_id, record.account_name = routed.account.id, routed.account.name
        record.attempts.append(routed.attempt)
        record.step(Step.ROUTE)
        trace = Trace(str(self._request.id), engine.replica, routed.account.name, len(record.attempts), engine.clock)
        may_continue = Cause.PREVIOUS_NOT_FOUND not in self._moves
        opened = await engine.carriage.open(self._request, routed, trace, may_continue=may_continue)
        self._exchange = exchange = opened.exchange
        self._implicit = opened.implicit
        record.upstream = exchange.transport
        record.sessions += engine.router.bind(self._request, routed)
        record.lease, record.tenure = engine.owned.lease_of(opened.lane), None
        await engine.ledger.open(record)
        record.tenure = engine.owned.tenure(record.lease)
        self._permit.confirm()
        record.step(Step.SEND)
        self._watch.sent()
        exchange.watch_backlog(self._backlog_grew)
        await exchange.send(opened.payload)
        headers = exchange.headers()
        self._sink.upstream_headers(self._shown(routed.account, headers))
        engine.health.heard_headers(routed.account.id, headers)
        self.told_headers(headers)
        await self._relay.run(exchange, opened.idle_events)

    def _shown(self, account: AccountSnapshot, headers: Mapping[str, str]) -> Mapping[str, str]:
        """The account's headers as the client may see them.

        A client that asked by an alias takes the model's own name for another model than it asked for.
        """
        request = self._request
        shown = self._engine.catalogue.headers_for(request.key, account, headers)
        if request.asked_model and shown.get(MODEL) == request.body.model:
            return {**shown, MODEL: request.asked_model}
        return shown

    def shown_metadata(self, event: Event) -> Event:
        """An event with what would be headers over HTTP, as the client may see it."""
        headers = read_metadata_headers(event)
        shown = headers if self._routed is None else self._shown(self._routed.account, headers)
        return event if shown == headers else with_metadata_headers(event, shown)

    def told_limits(self, event: Event) -> None:
        """The account has told its usage."""
        if self._trial is not None:
            self._engine.health.heard_limits(self._trial.account.id, event)

    def told_headers(self, headers: Mapping[str, str]) -> None:
        """The account has told what would be headers over HTTP; its turn state may be among them."""
        turn_state = headers.get(TURN_STATE)
        if self._routed is not None and turn_state:
            ties, account_id = self._engine.router.ties, self._routed.account.id
            self._write_too(ties.heard_turn_state(self._request, account_id, turn_state))

    def told_item(self, sealed: str | None) -> None:
        """The account has made what only it can read: the conversation needs it from now on."""
        if self._routed is not None:
            ties, account_id = self._engine.router.ties, self._routed.account.id
            self._write_too(ties.heard_item(self._request, account_id, sealed))

    def _write_too(self, session: Session | None) -> None:
        """Write this down when the turn is settled."""
        if session is not None:
            self.record.sessions.append(session)

    async def begun(self) -> None:
        """Whoever learns the id of a response in the background may ask for it, of any process, after a restart too."""
        if self._routed is None or not self.record.response_id:
            return
        self._engine.router.ties.began(self._request, self._routed.account.id, self.record.response_id)
        try:
            await self._engine.ledger.open(self.record)
        except LedgerUnavailable:
            # The account runs it already. Its row is written again when the turn ends.
            log.error("background_not_noted", turn=str(self._request.id))

    def goes_on_alone(self) -> bool:
        """Whether the account would go on without the client, so that its leaving ends nothing."""
        return self._request.body.background and self.record.phase in RUNNING

    def completed(self, response_id: str) -> None:
        """The account may store the response, and then continuations go to it; or it has a file from now on."""
        operation = self._request.operation
        if self._routed is not None and operation is not None:
            if operation.name == "file":
                ties, account_id = self._engine.router.ties, self._routed.account.id
                self._write_too(ties.heard_file(self._request, account_id, response_id))
            return
        if self._routed is not None and self.record.upstream == "http":
            self._engine.router.ties.completed(self._request, self._routed.account.id, response_id)

    def backlog(self) -> int:
        """Bytes from the upstream that wait for the client."""
        return 0 if self._exchange is None else self._exchange.backlog()

    def _backlog_grew(self, size: int) -> None:
        self._looked_at = self._engine.backlogs.grew(self, size, self._looked_at)

    async def _move_or_raise(self, error: GatewayError) -> None:
        """Leave the failed attempt for another one, or raise what the client has to be told."""
        cause = cause_of(error)
        decision = await self._decide(cause)
        routed = self._routed
        if routed is None and error.considered is not None:
            self.record.attempts.append(cast(Attempt, error.considered))
        if routed is not None:
            routed.attempt["cause"], routed.attempt["move"] = cause, decision.move
            routed.attempt["phase"] = self.record.phase
            routed.attempt["at_ms"] = self.record.elapsed_ms()
        self._end_trial(cause, decision, error)
        if self._must_resend(decision):
            message = "The account that owns this conversation cannot take it any more; send the full input."
            raise OwnerGone(message) from error
        if routed is None:
            raise error
        if isinstance(error, ConnectFailed) and cause is Cause.CONNECT_FAILED and decision.move is Move.SURFACE:
            raise self._engine.router.out_of_reach(self._request, self._tried, routed.account.id, error) from error
        if decision.move is Move.SURFACE:
            self._leave_or_raise(cause, error)
        elif decision.move not in (Move.SAME, Move.ELSEWHERE):
            raise error
        self._moves.append(cause)
        await finish_first(self._leave(clean=False))
        self.record.step(Step.REROUTE)
        if decision.move is Move.ELSEWHERE:
            self._exclude(routed.account, cause, error)
        if cause is Cause.CONNECT_FAILED:
            await self._wait_before_retry()

    def _leave_or_raise(self, cause: Cause, error: GatewayError) -> None:
        """A conversation may leave a hard owner that has just refused it for good; otherwise the client is told."""
        if cause not in LASTING or self.record.phase not in MOVABLE or self._kind is not BodyKind.BOUND:
            raise error
        if not self._engine.router.may_leave(self._request, self._tried):
            stuck = self._engine.router.why_nobody(self._request, self._tried)
            raise stuck if isinstance(stuck, AccountsLimited) else error

    @property
    def _kind(self) -> BodyKind:
        """What may become of the turn: as its body and its conversation's tie allow."""
        return self._request.kind if self._routed is None else self._routed.tie.kind

    async def _decide(self, cause: Cause) -> Decision:
        """What the table says; a token that could not be renewed counts as a second refusal at once."""
        decision = self._look_up(cause)
        if decision.blame is not Blame.REFRESH or self._routed is None:
            return decision
        renewal = await self._engine.health.renew(self._routed.account)
        if renewal is Renewal.DONE:
            return decision
        self._moves.append(cause)
        decision = self._look_up(cause)
        # An issuer that is out of reach is not the account's fault: it rests, and is tried again.
        return replace(decision, blame=Blame.PAUSED) if renewal is Renewal.LATER else decision

    def _look_up(self, cause: Cause) -> Decision:
        # The gateway still holds the whole input of a delta it made itself; only "not found" is about the delta.
        made_by_us = self._implicit and cause is Cause.PREVIOUS_NOT_FOUND
        kind = BodyKind.IMPLICIT if made_by_us else self._kind
        return decide(self.record.phase, cause, kind, self._moves)

    def _end_trial(self, cause: Cause, decision: Decision, error: GatewayError) -> None:
        """Report once what the attempt has shown of its account."""
        trial, self._trial = self._trial, None
        if trial is None:
            return
        if self._runs_unheard():
            self._engine.health.worked(trial)
        else:
            self._engine.health.failed(trial, cause, decision.blame, error)

    def _runs_unheard(self) -> bool:
        """Whether the response goes on in the background: losing sight of it says nothing against the account."""
        return self._request.body.background and self.record.phase in (Phase.STARTED, Phase.STREAMING)

    def _judge(self, failure: GatewayError | None) -> None:
        """Report the attempt that was under way when the turn ended."""
        terminal = self._relay.terminal
        if failure is not None:
            cause = cause_of(failure)
            self._end_trial(cause, self._look_up(cause), failure)
        elif terminal is not None and terminal.error_code in FAULTS:
            failed = UpstreamError("The response failed by the upstream's fault.", code=terminal.error_code)
            self._end_trial(Cause.RESPONSE_FAILED, self._look_up(Cause.RESPONSE_FAILED), failed)
        elif self._trial is not None:
            trial, self._trial = self._trial, None
            self._engine.health.worked(trial)

    def _must_resend(self, decision: Decision) -> bool:
        """A continuation that its owner refuses is sent anew by the client, when somebody could take it then."""
        if decision.move is not Move.RESEND:
            return False
        return decision.blame is Blame.NONE or self._engine.router.usable_elsewhere(self._request)

    def _exclude(self, account: AccountSnapshot, cause: Cause, error: GatewayError) -> None:
        """Note what the account said, and make sure that there is another one before going on."""
        if isinstance(error, ConnectFailed):
            self._tried.unreachable[account.id] = str(cause)
            return
        self._tried.refused[account.id] = str(cause)
        # The next account has a token of its own, which may be renewed once as well.
        self._moves = [move for move in self._moves if move is not Cause.UNAUTHORIZED]
        nobody = self._engine.router.why_nobody(self._request, self._tried)
        if nobody is not None:
            raise nobody if isinstance(nobody, AccountsLimited) else error

    async def _wait_before_retry(self) -> None:
        failures = self._moves.count(Cause.CONNECT_FAILED)
        longest = CONNECT_DELAYS[min(failures, len(CONNECT_DELAYS)) - 1]
        await asyncio.sleep(self._engine.clock.random.uniform(0, longest))

    async def _leave(self, *, clean: bool) -> None:
        """End the upstream's work, then give the account's stream back, whatever the ending did."""
        self._watch.left()
        exchange, self._exchange = self._exchange, None
        routed, self._routed = self._routed, None
        try:
            if exchange is not None:
                await exchange.close(clean=clean)
        except Exception:
            # The connection is given up either way, and the places behind it must come back.
            log.exception("close_failed", turn=str(self._request.id))
        finally:
            if routed is not None:
                routed.stream.release()

    def _hurry(self) -> None:
        """The client has no longer than for any other answer of a process that stops."""
        latest = asyncio.get_running_loop().time() + self._engine.tunables.close_timeout
        until = None if self._patience is None else self._patience.when()
        if self._patience is not None and until is not None and until > latest:
            self._patience.reschedule(latest)

    async def _end_silence(self) -> None:
        """A keepalive that the client does not take is given up, as its answer is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._engine.tunables.close_timeout):
                await self._sink.end_silence()

    def _cost(self, terminal: Terminal | None) -> int | None:
        body, tier = self._request.body, None if terminal is None else terminal.service_tier
        day = datetime.fromtimestamp(self._request.received_at, UTC).date()
        return self._engine.prices.cost(body.model or "", tier, self.record.usage, day)

    async def _end(self, failure: GatewayError | None) -> Outcome:
        """Tell the client, end the upstream's work, then give back and write down. Runs once, to its end."""
        terminal = self._relay.terminal
        if terminal is not None:
            # The answer was complete; what happened to its delivery does not change what the turn was.
            failure = None
        self._watch.left()
        self._judge(failure)
        try:
            if failure is not None:
                report(self.record, failure, self._engine.replica)
                self._patience = asyncio.timeout(patience_with(failure, self._engine.tunables))
                await tell(self.record, failure, self._sink, self._patience)
                self._patience = None
            self._watch.stop()
            await self._end_silence()
        except Exception:
            # A client that cannot be told must not keep the turn from being settled.
            log.exception("answer_failed", turn=str(self._request.id))
        await self._leave(clean=terminal is not None)
        self._watch.stop()
        self.record.step(Step.SETTLE)
        outcome = write_outcome(self.record, terminal, failure)
        self.record.cost = self._cost(terminal)
        self._permit.settle(spent(self.record))
        self._permit.release()
        self._engine.ledger.close(self.record)
        self._engine.running.pop(self, None)
        # Both refer back to the turn. Without them its body is freed now, not when the garbage collector comes.
        del self._watch, self._relay
        return outcome
