"""What a process tells of itself, as it is stored.

Times are unix seconds, so that a snapshot of a process in which nothing happens stays equal to the one before.
"""

from __future__ import annotations

import msgspec


class LiveAccount(msgspec.Struct, frozen=True):
    """What one account carries in one process."""

    active: int = 0
    waiting: int = 0
    lanes: int = 0


class LiveTurn(msgspec.Struct, frozen=True):
    """A turn that runs."""

    id: str
    received_at: float
    phase: str
    account: str
    key: str
    model: str


class LiveLane(msgspec.Struct, frozen=True):
    """A lane that is not closed. `session` is empty when it belongs to one client's own WebSocket.

    `idle_since` is None while it is busy; `rtt_ms` is None before the first pong.
    """

    account: int
    client: int
    session: str
    generation: int
    phase: str
    opened_at: float | None = None
    idle_since: float | None = None
    rtt_ms: int | None = None
    sent_bytes: int = 0
    received_bytes: int = 0


class Snapshot(msgspec.Struct, frozen=True):
    """What a process is doing.

    `accounts` is by id, as text. `turns` are some of the `held` and `waiting` ones, `lanes` some of the `open_lanes`.
    """

    held: int = 0
    waiting: int = 0
    open_lanes: int = 0
    accounts: dict[str, LiveAccount] = {}
    turns: list[LiveTurn] = []
    lanes: list[LiveLane] = []
