"""What became of a turn, told for people: one sentence, the phases in order, and each choice of an account.

Pure: reads one row of the ledger and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from dashboard.columns import NOTHING, duration
from gateway.models import Turn
from gateway.turns.record import Attempt
from gateway.turns.turn import Cause, Outcome, Phase

# What went wrong, with the account's name for {account}. Said of an attempt, and of the turn when it was the last one.
CAUSES: Mapping[str, str] = {
    Cause.CONNECT_FAILED: "no connection to {account} could be made",
    Cause.LANE_CLOSED: "the WebSocket to {account} was closed before anything was sent on it",
    Cause.UNAUTHORIZED: "the upstream did not accept the credentials of {account}",
    Cause.FORBIDDEN: "the upstream forbade this to {account}",
    Cause.USAGE_LIMIT: "{account} has reached its usage limit",
    Cause.RATE_LIMIT: "{account} was asked to slow down",
    Cause.UPSTREAM_BUSY: "the upstream was too busy to take it from {account}",
    Cause.PREVIOUS_NOT_FOUND: "{account} does not know the response that it continues",
    Cause.CONNECTION_LIMIT: "the WebSocket to {account} had reached the upstream's age limit",
    Cause.REJECTED: "the upstream rejected the request itself",
    Cause.RESPONSE_FAILED: "the upstream failed while it made the response",
    Cause.UPSTREAM_LOST: "the connection to {account} broke after the request was sent",
    Cause.RESPONSE_START_TIMEOUT: "{account} did not begin to answer in time",
    Cause.STREAM_IDLE_TIMEOUT: "{account} fell silent in the middle of the response",
    Cause.LIVENESS: "the WebSocket to {account} stopped answering pings",
    Cause.CLIENT_GONE: "the client went away",
    Cause.CLIENT_STALLED: "the client took its answer too slowly",
    Cause.OWNER_UNAVAILABLE: "the upstream connection that holds its conversation is gone or busy",
    Cause.LOCAL_REFUSAL: "the gateway itself could not take it",
    Cause.NO_ACCOUNT: "no account could take it",
    Cause.INTERNAL: "the gateway has a defect",
    "process_died": "the gateway's process died while it ran",
}
# Where the code says more than the cause.
CODES: Mapping[str, str] = {
    "gateway_full": "the gateway was full",
    "accounts_resting": "every account was resting for a moment",
    "account_streams_busy": "every account carried as many responses as it may",
    "lane_limit": "the account had no WebSocket left",
    "key_concurrent_turns": "its key was running as many turns at once as it may",
    "client_too_slow": "the client was too far behind with its answer",
}
STAGES: Sequence[tuple[Phase, str, str]] = (
    (Phase.ADMITTED, "admitted_ms", "Waited to be admitted"),
    (Phase.ROUTED, "routed_ms", "Chose an account"),
    (Phase.SENT, "sent_ms", "Connected and sent"),
    (Phase.STARTED, "started_ms", "Waited for the account's first event"),
    (Phase.STREAMING, "streaming_ms", "Passed the first byte on"),
    (Phase.SETTLED, "settled_ms", "Streamed the rest, then settled"),
)
ENDED_EARLY = "Ended"
# So many accounts are named in the sentence; all of them are in the list of choices.
NAMED = 3


@dataclass(frozen=True, slots=True)
class Stage:
    """One stretch of a turn's life, in milliseconds from its arrival; `phase` names what it led to."""

    phase: str
    title: str
    begin: int
    end: int
    bad: bool = False

    @property
    def took(self) -> str:
        return duration(self.end - self.begin)


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice of an account: what the conversation left for it, what came of it, why the others were passed over."""

    account: str
    transport: str
    chosen_from: str
    left: str
    failed: str
    then: str
    at: str
    passed_over: Sequence[tuple[str, str]]


def sentence(turn: Turn) -> str:
    """What became of the turn and why, in one sentence."""
    match turn.outcome:
        case "":
            return f"It is running: {_running(turn)}."
        case Outcome.COMPLETED:
            return f"{_account(turn)} answered it in {duration(turn.settled_ms)}{_first(turn)}{_moved(turn)}."
        case Outcome.INCOMPLETE:
            return f"{_account(turn)} ended its answer early, within what the client had asked for."
        case Outcome.CANCELLED:
            return f"The response was cancelled after {duration(turn.settled_ms)}."
        case Outcome.CLIENT_GONE:
            return f"It ended because {why(turn)}, after {duration(turn.settled_ms)}; no account is to blame."
    return f"It {_verb(turn)} because {why(turn)}{_moved(turn)}{_told(turn)}."


def why(turn: Turn) -> str:
    """The reason of an end that was no completed answer."""
    account = turn.account_name or "the account"
    if turn.code in CODES:
        return CODES[turn.code]
    if turn.cause == Cause.NO_ACCOUNT:
        return CAUSES[turn.cause] + _nobody(turn)
    if turn.cause in CAUSES:
        return CAUSES[turn.cause].format(account=account)
    if turn.outcome == Outcome.FAILED:
        return f"{account} ended the response with {turn.code or 'an error that has no code'}"
    return f"of {turn.cause.replace('_', ' ')}" if turn.cause else "of a reason that was not written down"


def stages(turn: Turn) -> list[Stage]:
    """Every phase that the turn reached, and the end where it came before the last of them."""
    found: list[Stage] = []
    before = 0
    for phase, field, title in STAGES:
        at: int | None = getattr(turn, field)
        if at is None:
            continue
        if phase is Phase.SETTLED and turn.streaming_ms is None:
            title = ENDED_EARLY
        # A turn that moved to another account reached some phases for the first time before it moved.
        found.append(Stage(str(phase), title, min(before, at), at, phase is Phase.SETTLED and _is_bad(turn)))
        before = max(before, at)
    return found


def choices(turn: Turn) -> list[Choice]:
    """Each choice of an account, in order."""
    return [_choice(attempt) for attempt in cast(Sequence[Attempt], turn.attempts)]


def _choice(attempt: Attempt) -> Choice:
    account, cause = attempt.get("account", ""), attempt.get("cause", "")
    return Choice(
        account=account,
        transport=attempt.get("transport", ""),
        chosen_from=attempt.get("chosen_from", NOTHING),
        left=attempt.get("left", ""),
        failed=CAUSES.get(cause, cause).format(account=account or "the account"),
        then=attempt.get("move", ""),
        at=duration(attempt["at_ms"]) if "at_ms" in attempt else "",
        passed_over=list(attempt.get("passed_over", {}).items()),
    )


def _nobody(turn: Turn) -> str:
    """Why the accounts were passed over when none was left, as far as one sentence can say it."""
    last = next(iter(cast(Sequence[Attempt], turn.attempts)[-1:]), None)
    passed = list((last or {}).get("passed_over", {}).items())
    told = [f"{name} {reason}" for name, reason in passed[:NAMED]]
    rest = len(passed) - len(told)
    told += [f"{rest} more, see below"] if rest else []
    return f" ({'; '.join(told)})" if told else ""


def _account(turn: Turn) -> str:
    return turn.account_name or "An account"


def _is_bad(turn: Turn) -> bool:
    return turn.outcome not in ("", Outcome.COMPLETED, Outcome.INCOMPLETE)


def _running(turn: Turn) -> str:
    if turn.streaming_ms is not None:
        return f"{turn.account_name} is answering"
    if turn.sent_ms is not None:
        return f"sent to {turn.account_name}, which has not begun to answer"
    return "nothing has been sent yet"


def _first(turn: Turn) -> str:
    return "" if turn.started_ms is None else f", its first event came after {duration(turn.started_ms)}"


def _moved(turn: Turn) -> str:
    """How often it was tried before, where it was."""
    failed = sum(1 for attempt in cast(Sequence[Attempt], turn.attempts)[:-1] if attempt.get("cause"))
    if not failed:
        return ""
    return f", after {failed} other attempt{'' if failed == 1 else 's'}"


def _verb(turn: Turn) -> str:
    return "was refused" if turn.outcome == Outcome.REFUSED else "failed"


def _told(turn: Turn) -> str:
    if turn.outcome == Outcome.INTERRUPTED:
        return "; its client saw the connection end"
    if turn.events:
        # Once a stream has begun its status is 200, and what went wrong comes as its last event.
        how, told = "the client's stream ended with", str(turn.code or turn.status or "")
    else:
        how, told = "the client was told", " ".join(str(part) for part in (turn.status, turn.code) if part)
    return f"; {how} {told}" if told else ""
