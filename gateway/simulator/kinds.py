"""What faults there are, and when each of them can act."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gateway.simulator.rules import Transport


class Moment(StrEnum):
    """At `start` the request is read and nothing answered; `idle` is between two responses of a WebSocket."""

    HANDSHAKE = "handshake"
    START = "start"
    EVENTS = "events"
    END = "end"
    AFTER = "after"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Position:
    """When a fault acts; `events` counts the events sent before it."""

    moment: Moment
    events: int = 0


HANDSHAKE = Position(Moment.HANDSHAKE)
START = Position(Moment.START)
CREATED = Position(Moment.EVENTS, 1)
FIRST_DELTA = Position(Moment.EVENTS, 4)
END = Position(Moment.END)
AFTER = Position(Moment.AFTER)
IDLE = Position(Moment.IDLE)

_BEFORE = frozenset({Moment.HANDSHAKE, Moment.START})
_STREAMING = frozenset({Moment.EVENTS, Moment.END})
_RUNNING = _STREAMING | {Moment.START}
_ANY = _RUNNING | {Moment.HANDSHAKE, Moment.IDLE}


@dataclass(frozen=True, slots=True)
class Kind:
    """What a name means, and where it acts when nothing else is said.

    An `ending` fault ends the turn or the socket, the others change how it runs. `required` and `optional`
    are the arguments in order. `moments` are where it can act besides, `transport` the only one where it can,
    and a fault for `continuations_only` meets no request without `previous_response_id`.
    """

    summary: str
    default: Position
    moments: frozenset[Moment] = frozenset()
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    ending: bool = True
    transport: Transport | None = None
    continuations_only: bool = False

    def acts_at(self, moment: Moment) -> bool:
        return moment in self.moments or moment is self.default.moment


_SILENCE: dict[str, Kind] = {
    "no_pongs": Kind("from here on the socket answers no ping", START, _ANY, ending=False, transport="websocket"),
    "silent": Kind("says nothing more and keeps the connection", START, _RUNNING),
    "silent_after_created": Kind("the same, after response.created", CREATED, _RUNNING),
    "silent_then_close": Kind(
        "silent for some seconds (0.2), then a close (1000)",
        START,
        _RUNNING,
        optional=("seconds", "close_code"),
    ),
    "hang_handshake": Kind("the handshake is never answered", HANDSHAKE, transport="websocket"),
}
_BREAKS: dict[str, Kind] = {
    "close": Kind("a close frame and no further byte", START, _ANY, required=("close_code",), transport="websocket"),
    "close_idle": Kind("a close frame between two responses", IDLE, required=("close_code",), transport="websocket"),
    "reset": Kind("a TCP reset in the middle of the stream", CREATED, _ANY),
    "reset_before_created": Kind("a TCP reset before anything is answered", START, _RUNNING),
    "eof": Kind("a plain TCP end, without close frame or last chunk", CREATED, _ANY),
    "no_terminal": Kind("a clean end (close 1000) without a terminal event", END, _STREAMING),
}
_PACE: dict[str, Kind] = {
    "slow": Kind("so many seconds between two events", START, required=("seconds",), ending=False),
    "flood": Kind("so many text deltas, as fast as possible", START, required=("events",), ending=False),
    "split_chunks": Kind("HTTP chunks of so many bytes", START, required=("bytes",), ending=False, transport="http"),
}
_EVENTS: dict[str, Kind] = {
    "big_event": Kind(
        "one more text delta, of so many bytes", FIRST_DELTA, _STREAMING, required=("bytes",), ending=False
    ),
    "malformed_event": Kind("one more event, which is broken JSON", FIRST_DELTA, _STREAMING, ending=False),
    "extra_after_terminal": Kind("the terminal event twice", AFTER, ending=False),
    "idle_rate_limits": Kind(
        "a codex.rate_limits event between two responses", IDLE, ending=False, transport="websocket"
    ),
    "error_frame": Kind(
        "an error frame; over SSE an error event", START, _RUNNING, required=("status",), optional=("code",)
    ),
    "response_failed": Kind("response.failed with this code", CREATED, _STREAMING, required=("code",)),
    "incomplete": Kind("response.incomplete with this reason", END, _STREAMING, required=("code",)),
}
_REFUSALS: dict[str, Kind] = {
    "usage_limit": Kind(
        "429 usage_limit_reached, over in so many seconds (3600)", START, _BEFORE, optional=("seconds",)
    ),
    "rate_limit": Kind("429 rate_limit_exceeded, with Retry-After if given", START, _BEFORE, optional=("seconds",)),
    "overloaded": Kind("503 server_is_overloaded", START, _BEFORE),
    "unauthorized": Kind("401", HANDSHAKE, _BEFORE),
    "handshake": Kind(
        "the handshake is answered with this status, with Retry-After if given",
        HANDSHAKE,
        required=("status",),
        optional=("seconds",),
        transport="websocket",
    ),
    "http": Kind(
        "this status, with Retry-After if given",
        START,
        required=("status",),
        optional=("seconds",),
        transport="http",
    ),
    "connection_limit": Kind("400 websocket_connection_limit_reached, then a close", START, transport="websocket"),
    "previous_not_found": Kind("400 previous_response_not_found", START, continuations_only=True),
}
KINDS: Mapping[str, Kind] = _SILENCE | _BREAKS | _PACE | _EVENTS | _REFUSALS
