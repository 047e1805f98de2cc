"""Faults as they are written, and which one meets which request. Pure; `kinds` says what they are.

A fault is written `name[:argument…][@account][#times][/position][~audience]`, for example

    reset/5                     every response: reset the connection after five events
    close:1011@ada#1            once, for account ada: close with 1011 before anything is answered
    usage_limit:3600~http       over HTTP: at the usage limit, which ends in an hour

Positions are `handshake`, `start` (the request has been read, nothing answered), `created` (after
`response.created`), a number of events, `end` (before the terminal event) and `idle` (between two responses
of a WebSocket). Over HTTP there is no handshake, so such a fault acts at the start. A number that lies behind
the terminal event acts just before it.

The audience is `http`, `websocket` or `prewarm`, and there may be several. A prewarm (`generate: false`) meets a
fault only when the fault asks for it: clients do not show how their prewarms end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from gateway.simulator.kinds import CREATED, END, HANDSHAKE, IDLE, KINDS, START, Kind, Moment, Position
from gateway.simulator.options import MAX_BYTES, MAX_EVENTS
from gateway.simulator.rules import Transport


class FaultError(ValueError):
    """A fault is written wrongly; the message says what is wrong and lists the known names."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault as asked for. Arguments that its kind does not have keep their empty value."""

    text: str
    name: str
    position: Position
    account: str | None = None
    times: int | None = None
    transport: Transport | None = None
    prewarm: bool = False
    status: int = 0
    close_code: int = 0
    count: int = 0
    seconds: float | None = None
    code: str = ""

    @property
    def kind(self) -> Kind:
        return KINDS[self.name]


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a fault may meet."""

    account: str
    transport: Transport
    continues: bool = False
    prewarms: bool = False


class Faults:
    """The faults that are active now. `subscribe` tells of additions, so that idle sockets can meet them."""

    def __init__(self, texts: tuple[str, ...] = ()) -> None:
        self._active: list[tuple[Fault, int | None]] = []
        self._listeners: list[Callable[[], None]] = []
        for text in texts:
            self.add(text)

    def __repr__(self) -> str:
        return f"<Faults {len(self._active)} active: {', '.join(map(str, self)) or 'none'}>"

    def __iter__(self) -> Iterator[str]:
        return iter([fault.text for fault, _ in self._active])

    def subscribe(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def add(self, text: str) -> Fault:
        """Activate a fault; raises `FaultError` when it is written wrongly."""
        fault = parse_fault(text)
        self._active.append((fault, fault.times))
        for listener in self._listeners:
            listener()
        return fault

    def clear(self) -> None:
        self._active.clear()

    def take(self, subject: Subject, moments: frozenset[Moment]) -> list[Fault]:
        """The faults that `subject` meets at these moments, used up once; at most one of them ends the turn.

        Of several ending faults the oldest is taken, so that a test can queue one for each attempt.
        """
        taken: list[Fault] = []
        for index, (fault, left) in enumerate(self._active):
            if not _meets(fault, subject, moments):
                continue
            if fault.kind.ending and any(other.kind.ending for other in taken):
                continue
            taken.append(fault)
            if left is not None:
                self._active[index] = (fault, left - 1)
        self._active = [(fault, left) for fault, left in self._active if left != 0]
        return taken


def moment_of(fault: Fault, transport: Transport) -> Moment:
    """When `fault` acts; over HTTP there is no handshake, so what would act there acts at the start."""
    moment = fault.position.moment
    return Moment.START if moment is Moment.HANDSHAKE and transport == "http" else moment


def _meets(fault: Fault, subject: Subject, moments: frozenset[Moment]) -> bool:
    return (
        moment_of(fault, subject.transport) in moments
        and fault.account in (None, subject.account)
        and fault.transport in (None, subject.transport)
        and fault.prewarm == subject.prewarms
        and (subject.continues or not fault.kind.continuations_only)
    )


_SYNTAX = re.compile(r"(?P<name>[a-z_]+)(?P<arguments>(?::[^:@#/~]*)*)(?P<suffixes>(?:[@#/~][^@#/~]+)*)")
_SUFFIX = re.compile(r"([@#/~])([^@#/~]+)")


def parse_fault(text: str) -> Fault:
    """Read a fault in the syntax of this module; raises `FaultError` with one sentence about what is wrong."""
    parts = _SYNTAX.fullmatch(text.strip())
    if parts is None:
        raise _error(text, "is not written as name[:argument][@account][#times][/position][~audience]")
    kind = KINDS.get(parts["name"])
    if kind is None:
        raise _error(text, "is unknown")
    fault = Fault(text.strip(), parts["name"], kind.default, transport=kind.transport)
    fault = _with_arguments(fault, parts["arguments"].split(":")[1:])
    for mark, value in _SUFFIX.findall(parts["suffixes"]):
        fault = _SUFFIXES[mark](fault, value)
    return fault


def _error(text: str, problem: str) -> FaultError:
    return FaultError(f"The fault {text!r} {problem}; known faults are {', '.join(KINDS)}.")


def _with_arguments(fault: Fault, values: list[str]) -> Fault:
    names = fault.kind.required + fault.kind.optional
    if not len(fault.kind.required) <= len(values) <= len(names):
        wanted = ", ".join([*fault.kind.required, *(f"[{name}]" for name in fault.kind.optional)]) or "none"
        raise _error(fault.text, f"has {len(values)} arguments instead of: {wanted}")
    for name, value in zip(names, values, strict=False):
        try:
            fault = _ARGUMENTS[name](fault, value)
        except ValueError:
            raise _error(fault.text, f"has {value!r} where {name} is {_RANGES[name]}") from None
    return fault


def _number(value: str, ranges: tuple[range, ...]) -> int:
    number = int(value)
    if not any(number in allowed for allowed in ranges):
        raise ValueError(number)
    return number


def _status(fault: Fault, value: str) -> Fault:
    return replace(fault, status=_number(value, (range(400, 600), range(300, 309))))


def _close_code(fault: Fault, value: str) -> Fault:
    # RFC 6455 section 7.4: the other codes are never sent.
    ranges = (range(1000, 1004), range(1007, 1015), range(3000, 5000))
    return replace(fault, close_code=_number(value, ranges))


def _events(fault: Fault, value: str) -> Fault:
    return replace(fault, count=_number(value, (range(1, MAX_EVENTS + 1),)))


def _bytes(fault: Fault, value: str) -> Fault:
    return replace(fault, count=_number(value, (range(1, MAX_BYTES + 1),)))


def _seconds(fault: Fault, value: str) -> Fault:
    seconds = float(value)
    if not 0 <= seconds <= 1e9:
        raise ValueError(seconds)
    return replace(fault, seconds=seconds)


def _code(fault: Fault, value: str) -> Fault:
    if not value:
        raise ValueError(value)
    return replace(fault, code=value)


_ARGUMENTS: Mapping[str, Callable[[Fault, str], Fault]] = {
    "status": _status,
    "close_code": _close_code,
    "events": _events,
    "bytes": _bytes,
    "seconds": _seconds,
    "code": _code,
}
_RANGES = {
    "status": "an HTTP status from 300 to 308 or 400 to 599",
    "close_code": "a close code that RFC 6455 allows to be sent",
    "events": f"a whole number from 1 to {MAX_EVENTS}",
    "bytes": f"a whole number from 1 to {MAX_BYTES}",
    "seconds": "a number of seconds",
    "code": "an error code or reason",
}


def _with_account(fault: Fault, value: str) -> Fault:
    return replace(fault, account=value)


def _with_times(fault: Fault, value: str) -> Fault:
    if value == "once":
        return replace(fault, times=1)
    if not value.isdecimal() or int(value) == 0:
        raise _error(fault.text, f"has {value!r} where the times are a whole number from 1, or once")
    return replace(fault, times=int(value))


def _with_position(fault: Fault, value: str) -> Fault:
    named = {"handshake": HANDSHAKE, "start": START, "created": CREATED, "end": END, "idle": IDLE}
    position = named.get(value)
    if position is None and value.isdecimal():
        position = Position(Moment.EVENTS, int(value))
    if position is None or not fault.kind.acts_at(position.moment):
        possible = [moment for moment in Moment if fault.kind.acts_at(moment)]
        raise _error(fault.text, f"cannot act at {value!r}, only at {', '.join(possible)}")
    return replace(fault, position=position)


def _with_audience(fault: Fault, value: str) -> Fault:
    transports: dict[str, Transport] = {"http": "http", "websocket": "websocket"}
    if value == "prewarm":
        return replace(fault, prewarm=True)
    if value not in transports:
        raise _error(fault.text, f"has the audience {value!r} where it is http, websocket or prewarm")
    if fault.kind.transport not in (None, value):
        raise _error(fault.text, f"exists on {fault.kind.transport} only")
    return replace(fault, transport=transports[value])


_SUFFIXES: Mapping[str, Callable[[Fault, str], Fault]] = {
    "@": _with_account,
    "#": _with_times,
    "/": _with_position,
    "~": _with_audience,
}
