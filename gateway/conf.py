"""Every tunable of the gateway in one frozen, validated object.

Each field is read from `GATEWAY_<NAME>` in the environment. Times are seconds, sizes are bytes. A value that
cannot work stops the start with a `SettingError` that names the variable and says what to change; nothing here
is changed while the process runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

MIB = 1024 * 1024


class SettingError(ValueError):
    """A `GATEWAY_*` variable has a value that cannot work. The message names the variable and the remedy."""


@dataclass(frozen=True, slots=True)
class Tunables:
    """Times and sizes of the traffic path. `docs/operations.md` prints this table."""

    connect_timeout: float = 5.0
    handshake_timeout: float = 15.0
    read_timeout: float = 300.0
    write_timeout: float = 30.0
    pool_timeout: float = 5.0
    http_max_connections: int = 1000
    http_max_idle: int = 100
    http_idle_expiry: float = 2.0
    terminal_drain_timeout: float = 1.0
    response_start_timeout: float = 180.0
    stream_idle_timeout: float = 300.0
    websocket_idle_timeout: float = 120.0
    lanes_per_account: int = 256
    streams_per_account: int = 8
    lane_max_age: float = 55 * 60.0
    lane_idle_timeout: float = 15 * 60.0
    admission_turns: int = 512
    admission_bytes: int = 512 * MIB
    admission_wait: float = 30.0
    max_body_bytes: int = 64 * MIB
    client_stall_timeout: float = 60.0
    client_buffer_bytes: int = 32 * MIB
    client_buffer_total: int = 256 * MIB
    close_timeout: float = 2.0
    soft_session_ttl: float = 30 * 60.0
    drain_timeout: float = 60.0
    header_wait: float = 45.0
    keepalive_interval: float = 15.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) <= 0:
                raise SettingError(f"{variable(field.name)} must be greater than zero.")
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


def read_tunables(environ: Mapping[str, str]) -> Tunables:
    """Build the tunables from `environ`; raises `SettingError` for a value that is no number or cannot work."""
    values: dict[str, float | int] = {}
    for field in fields(Tunables):
        text = environ.get(variable(field.name))
        if text is None:
            continue
        convert = int if field.type == "int" else float
        try:
            values[field.name] = convert(text)
        except ValueError:
            kind = "a whole number" if convert is int else "a number of seconds"
            raise SettingError(f"{variable(field.name)} must be {kind}, not {text!r}.") from None
    return Tunables(**values)  # type: ignore[arg-type]  # each value was converted by its field's own type
