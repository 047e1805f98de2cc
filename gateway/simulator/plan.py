"""What the upstream will do, step by step: a script and faults go in, steps come out. Pure.

Carrying out the steps is left to the transports, which decide nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from gateway.simulator.accounts import DEFAULT_RESET, SimulatedAccount, limit_event
from gateway.simulator.envelope import Event, event
from gateway.simulator.faults import Fault, moment_of
from gateway.simulator.kinds import Moment
from gateway.simulator.refusal import (
    Refusal,
    connection_limit,
    overloaded,
    plain_status,
    previous_not_found,
    rate_limit,
    unauthorized,
    usage_limit,
)
from gateway.simulator.rules import Transport
from gateway.simulator.script import Script, failed, incomplete, text_delta
from gateway.simulator.values import encode

NORMAL_CLOSE = 1000
SILENCE_BEFORE_CLOSE = 0.2


class Outcome(StrEnum):
    """How a request ended, as it is observed. `running` has not ended yet; `stopped` is the simulator's own end."""

    RUNNING = "running"
    COMPLETED = "completed"
    REFUSED = "refused"
    FAULTED = "faulted"
    CLIENT_GONE = "client_gone"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Accept:
    """Answer the handshake with 101."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Commit to a stream: the HTTP head, or the metadata events of a WebSocket."""


class Send(NamedTuple):
    """One event. `payload` is its JSON, or something broken in its place."""

    type: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Remember:
    """From here on the response can be continued."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """An HTTP answer with a status, or an error frame."""

    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float


@dataclass(frozen=True, slots=True)
class Silence:
    """Do nothing until the client leaves."""


@dataclass(frozen=True, slots=True)
class MutePongs:
    """Answer no ping of this socket any more."""


@dataclass(frozen=True, slots=True)
class SplitChunks:
    """Make no HTTP chunk longer than `size` bytes from here on."""

    size: int


@dataclass(frozen=True, slots=True)
class Close:
    """A close frame; nothing is sent after it."""

    code: int


@dataclass(frozen=True, slots=True)
class Reset:
    """A TCP reset."""


@dataclass(frozen=True, slots=True)
class Eof:
    """A TCP end that no protocol announces."""


@dataclass(frozen=True, slots=True)
class End:
    """The response is over: the last HTTP chunk; a WebSocket waits for its next request."""


Act = Accept | Begin | Refuse | MutePongs | SplitChunks | Close | Reset | Eof | End
Step = Act | Send | Remember | Wait | Silence


@dataclass(frozen=True, slots=True)
class Plan:
    """`interval` seconds lie between two `Send`s; `outcome` is true once every step is carried out."""

    steps: tuple[Step, ...]
    interval: float = 0.0
    outcome: Outcome = Outcome.COMPLETED
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the bytes of a fault depend on. `now` is unix seconds, `previous_response_id` the request's own."""

    account: SimulatedAccount
    transport: Transport
    now: float
    interval: float = 0.0
    previous_response_id: str = ""


def plan_turn(script: Script, faults: Sequence[Fault], circumstances: Circumstances) -> Plan:
    """The steps of one answer, with every fault in its place. The first ending fault cuts off what follows it."""
    planner = _Planner(circumstances, script)
    placed: dict[int, list[Fault]] = {}
    for fault in faults:
        placed.setdefault(_place(fault, script, circumstances.transport), []).append(fault)
    if planner.apply(placed.get(-1, ())):
        return planner.plan(faults)
    planner.begin()
    last = len(script.events) - 1
    for index, scripted in enumerate(script.events):
        if planner.apply(placed.get(index, ())):
            return planner.plan(faults)
        if index == last:
            planner.steps.append(Remember())
        planner.send(scripted)
    planner.apply(placed.get(last + 1, ()))
    planner.steps.append(End())
    return planner.plan(faults)


def plan_refusal(refusal: Refusal, faults: Sequence[Fault], circumstances: Circumstances) -> Plan:
    """The steps when a rule refuses the request; an ending fault at the start comes before any rule."""
    planner = _Planner(circumstances, None)
    if planner.apply(faults):
        return planner.plan(faults)
    planner.refuse(refusal)
    return Plan(tuple(planner.steps), outcome=Outcome.REFUSED, refusal=refusal)


def plan_handshake(faults: Sequence[Fault], circumstances: Circumstances) -> tuple[Step, ...]:
    """The steps that answer a handshake. A close and unanswered pings need an accepted one first."""
    planner = _Planner(circumstances, None)
    for fault in faults:
        if fault.name in ("close", "no_pongs") and Accept() not in planner.steps:
            planner.steps.append(Accept())
        if planner.apply([fault]):
            return tuple(planner.steps)
    return tuple(planner.steps) if Accept() in planner.steps else (*planner.steps, Accept())


def plan_idle(faults: Sequence[Fault], circumstances: Circumstances) -> tuple[Step, ...]:
    """The steps of a WebSocket on which nothing runs."""
    planner = _Planner(circumstances, None)
    planner.apply(faults)
    return tuple(planner.steps)


def _place(fault: Fault, script: Script, transport: Transport) -> int:
    """The index of the event before which the fault acts; -1 is before the stream has begun."""
    last = len(script.events) - 1
    match moment_of(fault, transport):
        case Moment.START:
            return -1
        case Moment.EVENTS:
            return min(fault.position.events, last)
        case Moment.END:
            return last
        case Moment.AFTER:
            return last + 1
        case moment:
            raise ValueError(f"A fault at the moment {moment} has no place in a turn.")


class _Planner:
    """Collects steps and numbers events. The methods named after faults are what these faults do."""

    def __init__(self, circumstances: Circumstances, script: Script | None) -> None:
        self.circumstances = circumstances
        self.steps: list[Step] = []
        self.interval = circumstances.interval
        self.refusal: Refusal | None = None
        self._script = script
        self._number = 0
        self._begun = False

    @property
    def script(self) -> Script:
        if self._script is None:
            raise ValueError("This fault acts inside a response, and none runs.")
        return self._script

    def apply(self, faults: Sequence[Fault]) -> bool:
        """Add what these faults do; whether one of them ended it all."""
        for fault in sorted(faults, key=lambda fault: fault.kind.ending):
            EFFECTS[fault.name](self, fault)
            if fault.kind.ending:
                return True
        return False

    def plan(self, faults: Sequence[Fault]) -> Plan:
        ended = any(fault.kind.ending for fault in faults)
        outcome = Outcome.FAULTED if ended else Outcome.COMPLETED
        return Plan(tuple(self.steps), self.interval, outcome, self.refusal)

    def begin(self) -> None:
        if not self._begun:
            self._begun = True
            self.steps.append(Begin())

    def send(self, sent: Event) -> None:
        self.steps.append(Send(sent.type, sent.payload(self._number)))
        self._number += 1

    def refuse(self, refusal: Refusal) -> None:
        self.refusal = refusal
        self.steps.append(Refuse(refusal))
        self.steps.append(End())

    def finish(self, terminal: Event) -> None:
        self.send(terminal)
        self.steps.append(End())

    def no_pongs(self, fault: Fault) -> None:
        self.steps.append(MutePongs())

    def silent(self, fault: Fault) -> None:
        self.steps.append(Silence())

    def silent_then_close(self, fault: Fault) -> None:
        self.steps.append(Wait(SILENCE_BEFORE_CLOSE if fault.seconds is None else fault.seconds))
        self._leave(fault.close_code or NORMAL_CLOSE)

    def close(self, fault: Fault) -> None:
        self.steps.append(Close(fault.close_code))

    def reset(self, fault: Fault) -> None:
        self.steps.append(Reset())

    def eof(self, fault: Fault) -> None:
        self.steps.append(Eof())

    def slow(self, fault: Fault) -> None:
        self.interval = fault.seconds or 0.0

    def flood(self, fault: Fault) -> None:
        # The script already has its many events; only their pace is left to set.
        self.interval = 0.0

    def split_chunks(self, fault: Fault) -> None:
        self.steps.append(SplitChunks(fault.count))

    def big_event(self, fault: Fault) -> None:
        self.send(text_delta(self.script.envelope, fault.count))

    def malformed_event(self, fault: Fault) -> None:
        self.steps.append(Send("response.output_text.delta", b'{"type":"response.output_text.delta","delta":"'))

    def extra_after_terminal(self, fault: Fault) -> None:
        self.send(self.script.events[-1])

    def error_frame(self, fault: Fault) -> None:
        refusal = plain_status(fault.status, fault.code)
        if self.circumstances.transport == "websocket":
            self.refuse(refusal)
            return
        self.begin()
        self.finish(event("error", code=refusal.code, message=refusal.message, param=None))

    def response_failed(self, fault: Fault) -> None:
        message = f"The response failed with {fault.code} because a fault was asked for."
        self.finish(failed(self.script.envelope, fault.code, message))

    def incomplete(self, fault: Fault) -> None:
        self.steps.append(Remember())
        self.finish(incomplete(self.script, fault.code))

    def no_terminal(self, fault: Fault) -> None:
        if self.circumstances.transport == "http":
            self.steps.append(End())
        else:
            self.steps.append(Close(NORMAL_CLOSE))

    def usage_limit(self, fault: Fault) -> None:
        account, now = self.circumstances.account, self.circumstances.now
        seconds = DEFAULT_RESET if fault.seconds is None else fault.seconds
        self.refuse(usage_limit(int(now + seconds), account.plan_type, now))

    def rate_limit(self, fault: Fault) -> None:
        self.refuse(rate_limit(fault.seconds))

    def overloaded(self, fault: Fault) -> None:
        self.refuse(overloaded())

    def unauthorized(self, fault: Fault) -> None:
        self.refuse(unauthorized())

    def status(self, fault: Fault) -> None:
        self.refuse(plain_status(fault.status, retry_after=fault.seconds))

    def connection_limit(self, fault: Fault) -> None:
        self.refusal = connection_limit()
        self.steps += [Refuse(self.refusal), Close(NORMAL_CLOSE)]

    def previous_not_found(self, fault: Fault) -> None:
        self.refuse(previous_not_found(self.circumstances.previous_response_id))

    def idle_rate_limits(self, fault: Fault) -> None:
        limits = limit_event(self.circumstances.account, self.circumstances.now)
        self.steps.append(Send("codex.rate_limits", encode(limits)))

    def _leave(self, code: int) -> None:
        self.steps.append(Close(code) if self.circumstances.transport == "websocket" else Eof())


# What each of the faults in `kinds` does.
EFFECTS: Mapping[str, Callable[[_Planner, Fault], None]] = {
    "no_pongs": _Planner.no_pongs,
    "silent": _Planner.silent,
    "silent_after_created": _Planner.silent,
    "silent_then_close": _Planner.silent_then_close,
    "close": _Planner.close,
    "close_idle": _Planner.close,
    "reset": _Planner.reset,
    "reset_before_created": _Planner.reset,
    "eof": _Planner.eof,
    "slow": _Planner.slow,
    "flood": _Planner.flood,
    "split_chunks": _Planner.split_chunks,
    "big_event": _Planner.big_event,
    "malformed_event": _Planner.malformed_event,
    "extra_after_terminal": _Planner.extra_after_terminal,
    "error_frame": _Planner.error_frame,
    "response_failed": _Planner.response_failed,
    "incomplete": _Planner.incomplete,
    "no_terminal": _Planner.no_terminal,
    "usage_limit": _Planner.usage_limit,
    "rate_limit": _Planner.rate_limit,
    "overloaded": _Planner.overloaded,
    "unauthorized": _Planner.unauthorized,
    "handshake": _Planner.status,
    "hang_handshake": _Planner.silent,
    "http": _Planner.status,
    "connection_limit": _Planner.connection_limit,
    "previous_not_found": _Planner.previous_not_found,
    "idle_rate_limits": _Planner.idle_rate_limits,
}
