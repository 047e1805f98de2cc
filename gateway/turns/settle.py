"""How a turn ends: what its client is told, and what the ledger keeps."""

from __future__ import annotations

import asyncio

from gateway.conf import Tunables
from gateway.diagnostics import CLIENT, UPSTREAM, chain, emit
from gateway.errors import ClientLost, GatewayError, Stopping
from gateway.metering.usage import NOTHING, Counts
from gateway.protocol.events import Terminal
from gateway.turns.answers import answer
from gateway.turns.causes import cause_of
from gateway.turns.record import TurnRecord
from gateway.turns.sink import Sink
from gateway.turns.turn import Cause, Outcome, Phase

BYTES_PER_TOKEN = 4
# Images have many bytes and few tokens; hardly any request has more of these than so many.
MOST_ESTIMATED = 200_000

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


def patience_with(failure: GatewayError, tunables: Tunables) -> float:
    """Seconds that a client has to take its last answer; a process that stops does not wait long for one client."""
    return tunables.close_timeout if isinstance(failure, Stopping) else tunables.client_stall_timeout


async def tell(record: TurnRecord, failure: GatewayError, sink: Sink, patience: asyncio.Timeout) -> None:
    """Give the client the answer for `failure`, waiting no longer than `patience` for it to be taken."""
    told = answer(failure, record.request.route)
    record.code, record.status = told.code or told.type, told.status
    if isinstance(failure, ClientLost):
        return
    try:
        async with patience:
            await sink.refuse(told)
    except (ClientLost, TimeoutError):
        # The client will not hear it; the ledger keeps the reason.
        pass


def spent(record: TurnRecord) -> Counts:
    """What a turn that has ended counts for its key. What was refused before anything ran counts nothing.

    Where the account did not tell the tokens of something that ran, they are estimated, so that a client that leaves
    before the end has not worked for nothing: four bytes of the request a token, and one for each event. The ledger
    keeps the tokens as unknown.
    """
    refused = record.outcome is Outcome.REFUSED and Phase.STARTED not in record.phases
    if Phase.SENT not in record.phases or refused:
        return NOTHING
    body = record.request.body
    if record.usage is not None:
        tokens = record.usage.total
    elif record.outcome is Outcome.FAILED or not body.generate:
        tokens = 0
    else:
        tokens = min(len(body.raw) // BYTES_PER_TOKEN, MOST_ESTIMATED) + record.events
    unpriced = record.cost is None and tokens > 0
    return Counts(1 if body.generate else 0, tokens, record.cost or 0, 1 if unpriced else 0)


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
