"""How a turn ends: what its client is told, and what the ledger keeps."""

from __future__ import annotations

import asyncio

from gateway.diagnostics import CLIENT, UPSTREAM, chain, emit
from gateway.errors import ClientLost, GatewayError
from gateway.protocol.events import Terminal
from gateway.turns.answers import answer
from gateway.turns.causes import cause_of
from gateway.turns.record import TurnRecord
from gateway.turns.sink import Sink
from gateway.turns.turn import Cause, Outcome

OUTCOMES = {
    Cause.CLIENT_GONE: Outcome.CLIENT_GONE,
    Cause.CLIENT_STALLED: Outcome.CLIENT_GONE,
    Cause.UPSTREAM_LOST: Outcome.UPSTREAM_LOST,
    Cause.LIVENESS: Outcome.UPSTREAM_LOST,
    Cause.RESPONSE_START_TIMEOUT: Outcome.UPSTREAM_LOST,
    Cause.STREAM_IDLE_TIMEOUT: Outcome.UPSTREAM_LOST,
}


def report(record: TurnRecord, failure: GatewayError, replica: str) -> None:
    """Log why the turn ended without a terminal event of the upstream."""
    emit(
        "dispatch_failed",
        turn=str(record.request.id),
        replica=replica,
        account=record.account_name or None,
        stage=str(record.phase),
        hop=CLIENT if isinstance(failure, ClientLost) else UPSTREAM,
        cause=str(cause_of(failure)),
        code=failure.code,
        events=record.events,
        elapsed_ms=record.elapsed_ms(),
        error=chain(failure),
    )


async def tell(record: TurnRecord, failure: GatewayError, sink: Sink, patience: float) -> None:
    """Give the client the answer for `failure`, waiting at most `patience` seconds for it to be taken."""
    told = answer(failure, record.request.route)
    record.code, record.status = told.code or told.type, told.status
    if isinstance(failure, ClientLost):
        return
    try:
        async with asyncio.timeout(patience):
            await sink.refuse(told)
    except (ClientLost, TimeoutError):
        # The client will not hear it; the ledger keeps the reason.
        pass


def write_outcome(record: TurnRecord, terminal: Terminal | None, failure: GatewayError | None) -> Outcome:
    """Put into `record` how the turn ended: by the upstream's terminal event if there was one, else by `failure`."""
    if terminal is not None:
        record.usage = terminal.usage
        record.code = terminal.error_code or record.code
        outcome = Outcome(terminal.status)
    elif failure is not None:
        cause = cause_of(failure)
        record.cause = cause
        outcome = OUTCOMES.get(cause, Outcome.FAILED if cause is Cause.INTERNAL else Outcome.REFUSED)
    else:
        raise AssertionError("a turn ended without a terminal event and without a failure")
    record.outcome = outcome
    return outcome
