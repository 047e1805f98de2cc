"""One physical upstream WebSocket as the pool sees it: its state, its owner, what it carries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gateway.errors import ConnectFailed, UpstreamError, UpstreamLost
from gateway.protocol.chain import Chain
from gateway.protocol.events import Event, Kind, only_plain, read_event, read_terminal
from gateway.upstream.connection import LaneConnection
from gateway.upstream.exchange import PassOn


class LaneState(StrEnum):
    CONNECTING = "connecting"
    OPEN = "open"
    BUSY = "busy"
    RETIRING = "retiring"
    CLOSED = "closed"


class LaneStep(StrEnum):
    OPENED = "opened"
    BORROW = "borrow"
    GIVE_BACK = "give back"
    RETIRE = "retire"
    CLOSE = "close"


TRANSITIONS: dict[tuple[LaneState, LaneStep], LaneState] = {
    (LaneState.CONNECTING, LaneStep.OPENED): LaneState.BUSY,
    (LaneState.CONNECTING, LaneStep.CLOSE): LaneState.CLOSED,
    (LaneState.OPEN, LaneStep.BORROW): LaneState.BUSY,
    (LaneState.OPEN, LaneStep.RETIRE): LaneState.RETIRING,
    (LaneState.OPEN, LaneStep.CLOSE): LaneState.CLOSED,
    (LaneState.BUSY, LaneStep.GIVE_BACK): LaneState.OPEN,
    (LaneState.BUSY, LaneStep.RETIRE): LaneState.RETIRING,
    (LaneState.BUSY, LaneStep.CLOSE): LaneState.CLOSED,
    (LaneState.RETIRING, LaneStep.RETIRE): LaneState.RETIRING,
    (LaneState.RETIRING, LaneStep.CLOSE): LaneState.CLOSED,
    (LaneState.CLOSED, LaneStep.RETIRE): LaneState.CLOSED,
    (LaneState.CLOSED, LaneStep.CLOSE): LaneState.CLOSED,
}


class IllegalLaneStep(RuntimeError):
    """A lane was asked for a step that its state does not allow: a defect in the gateway."""


PRIVATE_SESSION = "socket:"


@dataclass(frozen=True, slots=True)
class LaneKey:
    """Whose lane it is: an account's, for one session of one client (the id of its key)."""

    account_id: int
    client: int
    session: str

    @property
    def private(self) -> bool:
        """Whether the lane belongs to one client WebSocket, which nobody else may continue on."""
        return self.session.startswith(PRIVATE_SESSION)


class Lane:
    """One upstream WebSocket. The pool changes its state; a turn reads and writes it through a `LaneExchange`.

    `replaced` says that it drains, or will as soon as it is connected.
    """

    def __init__(self, key: LaneKey, generation: int, keeper: LaneKeeper) -> None:
        self.key = key
        self.generation = generation
        self.state = LaneState.CONNECTING
        self.replaced = False
        self.anchor: str | None = None
        self.chain: Chain | None = None
        self.opened_at = 0.0
        self.idle_since = 0.0
        self._keeper = keeper
        self._connection: LaneConnection | None = None
        self.on_backlog: Callable[[int], None] | None = None

    def __repr__(self) -> str:
        return f"<Lane account {self.key.account_id} generation {self.generation} {self.state}>"

    def __hash__(self) -> int:
        # By age, not by address: a set of lanes has the same order in every run of a simulation.
        return self.generation

    @property
    def connection(self) -> LaneConnection:
        """The socket; raises `RuntimeError` while the lane is still connecting."""
        if self._connection is None:
            raise RuntimeError("the lane has no connection yet")
        return self._connection

    @property
    def alive(self) -> bool:
        """Whether the lane can carry, or is carrying, a response."""
        return self.state in (LaneState.OPEN, LaneState.BUSY)

    @property
    def waits_for_dial(self) -> bool:
        """Whether a turn is dialling the lane."""
        return self.state is LaneState.CONNECTING and not self.replaced

    def step(self, step: LaneStep) -> None:
        """Apply `step`; raises `IllegalLaneStep` naming state and step when the table does not allow it."""
        try:
            self.state = TRANSITIONS[self.state, step]
        except KeyError:
            raise IllegalLaneStep(f"a lane that is {self.state} cannot {step}") from None

    def opened(self, connection: LaneConnection, now: float) -> None:
        """The dial succeeded; whoever dialled has borrowed the lane."""
        self._connection = connection
        self.opened_at = now
        self.step(LaneStep.OPENED)
        connection.listener = self

    def backlog_grew(self, size: int) -> None:
        if self.on_backlog is not None:
            self.on_backlog(size)
        else:
            self._keeper.idle_backlog(self, size)

    def connection_lost(self) -> None:
        self._keeper.lost(self)


class LaneKeeper(Protocol):
    """What a lane tells its pool."""

    def lost(self, lane: Lane) -> None: ...

    def idle_backlog(self, lane: Lane, size: int) -> None: ...

    def publish(self, lane: Lane, response_id: str) -> bool: ...

    async def give_back(self, lane: Lane, *, clean: bool) -> None: ...


class LaneExchange:
    """One response on a borrowed lane."""

    transport = "websocket"

    def __init__(self, lane: Lane, keeper: LaneKeeper) -> None:
        self.lane = lane
        self._keeper = keeper
        # An upstream that says its last word twice may say it the second time when the next request is under way.
        self._before = lane.anchor
        self._began = False

    async def send(self, payload: bytes) -> None:
        """Send `response.create`. A lane that was lost before raises `ConnectFailed`: nothing was sent on it.

        A lane that drains takes it: who has borrowed a lane may use it, whatever became of it meanwhile.
        """
        await self.lane.connection.write(payload)

    async def receive(self, pass_on: PassOn | None = None) -> list[Event]:
        def take(messages: list[bytes]) -> bool:
            events = [read_event(message) for message in messages]
            return pass_on is not None and only_plain(events) and pass_on(events)

        events: list[Event] = []
        while not events:
            events = await self._read(None if pass_on is None else take)
            if not self._began:
                events = self._without_the_last_answer(events)
        return events

    async def _read(self, take: Callable[[list[bytes]], bool] | None = None) -> list[Event]:
        connection = self.lane.connection
        events = [read_event(message) for message in await connection.read(take)]
        if connection.got_binary:
            raise UpstreamLost("The upstream sent a binary frame, which the protocol does not know.")
        return events

    def _without_the_last_answer(self, events: list[Event]) -> list[Event]:
        """Until the response begins: drop the end of the one before, which its own client has had."""
        if self._before is not None and any(event.kind is Kind.TERMINAL for event in events):
            events = [e for e in events if e.kind is not Kind.TERMINAL or read_terminal(e).response_id != self._before]
        self._began = any(event.kind is not Kind.METADATA for event in events)
        return events

    def headers(self) -> Mapping[str, str]:
        response = self.lane.connection.response
        if response is None:
            return {}
        return {name.lower(): value for name, value in response.headers.raw_items()}

    def watch_backlog(self, grew: Callable[[int], None]) -> None:
        self.lane.on_backlog = grew

    def backlog(self) -> int:
        return self.lane.connection.waiting_bytes

    def publish(self, response_id: str) -> bool:
        return self._keeper.publish(self.lane, response_id)

    def remember(self, chain: Chain | None) -> None:
        self.lane.chain = chain

    async def close(self, *, clean: bool) -> None:
        self.lane.on_backlog = None
        await self._keeper.give_back(self.lane, clean=clean and self.lane.state is not LaneState.CLOSED)

    async def read_idle_events(self) -> list[Event]:
        """What the upstream pushed while nobody was reading; raises when it is more than metadata.

        Call it before `send`: a leftover event would otherwise be taken for one of the next response.
        """
        connection = self.lane.connection
        events: list[Event] = []
        while connection.waiting_messages:
            try:
                events.extend(await self._read())
            except UpstreamError as error:
                raise ConnectFailed("The lane was lost while it was idle.", code="lane_closed") from error
        if any(event.kind is not Kind.METADATA for event in events):
            raise ConnectFailed("The lane carried events of no response.", code="lane_closed")
        return events
