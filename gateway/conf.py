"""Every tunable of the gateway in one frozen, validated object.

Each field is read from `GATEWAY_<NAME>` in the environment. Times are seconds, sizes are bytes. A value that
cannot work stops the start with a `SettingError` that names the variable and says what to change; nothing here
is changed while the process runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

from accounts.selection import Strategy

MIB = 1024 * 1024


class SettingError(ValueError):
    """A `GATEWAY_*` variable has a value that cannot work. The message names the variable and the remedy."""


def _seconds(default: float, meaning: str) -> float:
    return field(default=default, metadata={"unit": "seconds", "meaning": meaning})


def _size(default: int, meaning: str) -> int:
    return field(default=default, metadata={"unit": "bytes", "meaning": meaning})


def _count(default: int, meaning: str) -> int:
    return field(default=default, metadata={"unit": "count", "meaning": meaning})


def _flag(default: bool, meaning: str) -> bool:
    return field(default=default, metadata={"unit": "on or off", "meaning": meaning})


@dataclass(frozen=True, slots=True)
class Tunables:
    """Times, sizes and choices of the traffic path.

    Each field's metadata holds its `unit` and its `meaning`, Markdown for the table in `docs/design.md`.
    """

    connect_timeout: float = _seconds(5.0, "The TCP (and for HTTP the TLS) connection to an account.")
    handshake_timeout: float = _seconds(15.0, "Opening a lane in all: connection, TLS and WebSocket handshake.")
    read_timeout: float = _seconds(300.0, "Silence of an account's HTTP connection.")
    write_timeout: float = _seconds(30.0, "Sending a piece of a request to an account over HTTP.")
    pool_timeout: float = _seconds(5.0, "Waiting for one of `HTTP_MAX_CONNECTIONS`; then the turn is refused.")
    http_max_connections: int = _count(1000, "HTTP connections to all accounts together.")
    http_max_idle: int = _count(100, "HTTP connections kept open between turns.")
    http_idle_expiry: float = _seconds(
        2.0, "An idle HTTP connection is not used again after this; upstreams and proxies must keep it longer."
    )
    terminal_drain_timeout: float = _seconds(
        1.0, "Reading the rest of an HTTP stream after its terminal event, so that the connection can be used again."
    )
    response_start_timeout: float = _seconds(180.0, "From sending a request to the account's first real event.")
    stream_idle_timeout: float = _seconds(300.0, "Between two events of a response that has started.")
    websocket_idle_timeout: float = _seconds(
        120.0,
        "A WebSocket, the client's or a lane, that leaves a ping unanswered for so long is dropped. Pings go out every "
        "20 s or a third of this, whichever is less.",
    )
    lanes_per_account: int = _count(
        256,
        "WebSockets to one account, those that connect or close included. When they run out the longest-idle one "
        "makes room; a turn is refused only if all are busy.",
    )
    streams_per_account: int = _count(
        8, "Responses one account carries at once, unless its `max_streams` says otherwise; more turns wait in line."
    )
    lane_max_age: float = _seconds(55 * 60.0, "An older lane is closed between two turns; upstreams cut at an hour.")
    lane_idle_timeout: float = _seconds(
        15 * 60.0, "An unused lane is closed after this, unless it belongs to a client's own open WebSocket."
    )
    admission_turns: int = _count(512, "Turns in the gateway at once; again as many may wait.")
    admission_bytes: int = _size(512 * MIB, "Request bodies in memory at once; again as much may wait.")
    admission_wait: float = _seconds(
        30.0, "Waiting for admission, and again for a free stream of an account; then the turn is refused."
    )
    max_body_bytes: int = _size(64 * MIB, "One request body or client frame, as it comes and decompressed.")
    client_stall_timeout: float = _seconds(60.0, "A client that takes no byte for so long is cut.")
    client_buffer_bytes: int = _size(
        32 * MIB, "What may wait on a lane for one slow client; a client that is further behind is cut."
    )
    client_buffer_total: int = _size(
        256 * MIB, "The same for all clients together; beyond it the one that is furthest behind is cut."
    )
    close_timeout: float = _seconds(2.0, "Closing a connection in good order; then it is aborted.")
    lease_ttl: float = _seconds(
        30.0,
        "How long a process that was not heard of keeps what it owns. It is heard of three times as often; the clocks "
        "of several machines need not agree.",
    )
    soft_session_ttl: float = _seconds(
        30 * 60.0, "How long a conversation without bound state prefers the account that carried it last."
    )
    stale_owner_age: float = _seconds(
        6 * 3600.0, "A conversation unused for so long lets go of an account that nobody can use; marked, then deleted."
    )
    migrate_conversations: bool = _flag(
        False,
        "Whether a conversation may leave an account that will not be usable within 10 minutes, dropping the model's "
        "reasoning, which no other account can read, where nothing else ties it. An API key may say otherwise.",
    )
    turn_retention: float = _seconds(30 * 86400.0, "Turns in the ledger are deleted when they are older.")
    drain_timeout: float = _seconds(60.0, "At shutdown, for running turns to end; then they are ended, each answered.")
    selection_strategy: Strategy = field(
        default=Strategy.CAPACITY_WEIGHTED,
        metadata={
            "unit": "name",
            "meaning": "Which of the accounts with the lowest priority number is tried first. `capacity_weighted`: the "
            "one with the smallest share of its streams in use and of its usage windows used up. `round_robin`: each "
            "in turn. `least_used`: the one with most left of its usage windows. `fill_first`: the most used one, so "
            "that the others stay fresh. `priority`: always in the same order.",
        },
    )
    header_wait: float = _seconds(
        45.0,
        "How long a streamed HTTP answer holds its headers back for the first event, so that a refusal is a status.",
    )
    keepalive_interval: float = _seconds(15.0, "Silence in a stream before the gateway sends a keepalive.")

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, str | bool):
                continue
            if not (math.isfinite(value) and value > 0):
                raise SettingError(f"{variable(each.name)} must be a number greater than zero, not {value}.")
        if self.max_body_bytes > self.admission_bytes:
            raise SettingError(
                "GATEWAY_MAX_BODY_BYTES is larger than GATEWAY_ADMISSION_BYTES, so the largest body "
                "could never be admitted; raise GATEWAY_ADMISSION_BYTES."
            )
        if self.client_buffer_bytes > self.client_buffer_total:
            raise SettingError(
                "GATEWAY_CLIENT_BUFFER_BYTES is larger than GATEWAY_CLIENT_BUFFER_TOTAL; raise the total."
            )

    @property
    def ping_interval(self) -> float:
        """Seconds between WebSocket pings, up- and downstream: 20 s or a third of the idle timeout."""
        return min(20.0, self.websocket_idle_timeout / 3)


def variable(name: str) -> str:
    """The environment variable that sets the field `name`."""
    return f"GATEWAY_{name.upper()}"


_FLAGS = {"on": True, "true": True, "yes": True, "1": True, "off": False, "false": False, "no": False, "0": False}


def _flag_of(text: str) -> bool:
    if text.lower() not in _FLAGS:
        raise ValueError(text)
    return _FLAGS[text.lower()]


_CONVERTERS: Mapping[str, Callable[[str], float | int | bool | Strategy]] = {
    "float": float,
    "int": int,
    "bool": _flag_of,
    "Strategy": Strategy,
}
_KINDS = {
    "float": "a number of seconds",
    "int": "a whole number",
    "bool": "on or off",
    "Strategy": f"one of {', '.join(Strategy)}",
}


def read_tunables(environ: Mapping[str, str]) -> Tunables:
    """Build the tunables from `environ`; raises `SettingError` for a value that is no number or cannot work."""
    values: dict[str, float | int | bool | Strategy] = {}
    for each in fields(Tunables):
        text = environ.get(variable(each.name))
        if text is None:
            continue
        convert = _CONVERTERS[str(each.type)]
        try:
            values[each.name] = convert(text)
        except ValueError:
            kind = _KINDS[str(each.type)]
            raise SettingError(f"{variable(each.name)} must be {kind}, not {text!r}.") from None
    return Tunables(**values)  # type: ignore[arg-type]  # each value was converted by its field's own type
