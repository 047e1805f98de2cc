"""A lane's states as its table says, and the exchange that a turn borrows."""

from __future__ import annotations

import itertools

import pytest

from gateway.errors import ConnectFailed, UpstreamLost
from gateway.protocol.events import Event, Kind
from gateway.upstream.lane import (
    PRIVATE_SESSION,
    TRANSITIONS,
    IllegalLaneStep,
    Lane,
    LaneExchange,
    LaneKey,
    LaneState,
    LaneStep,
)
from tests.gateway.upstream.fakes import FakeConnection, Handshake, Headers, key

CREATED = b'{"type":"response.created","response":{"id":"resp_1"}}'
LIMITS = b'{"type":"codex.rate_limits","rate_limits":{}}'
DELTA = b'{"type":"response.output_text.delta","delta":"a"}'
COMPLETED = b'{"type":"response.completed","response":{"id":"resp_1"}}'


class Keeper:
    """Notes what a lane tells its pool."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def lost(self, lane: Lane) -> None:
        lane.step(LaneStep.CLOSE)
        self.told.append(("lost",))

    def idle_backlog(self, lane: Lane, size: int) -> None:
        self.told.append(("idle backlog", size))

    def publish(self, lane: Lane, response_id: str) -> None:
        self.told.append(("publish", response_id))

    async def give_back(self, lane: Lane, *, clean: bool) -> None:
        self.told.append(("give back", clean))


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


@pytest.fixture
def connection() -> FakeConnection:
    return FakeConnection()


@pytest.fixture
def exchange(keeper: Keeper, connection: FakeConnection) -> LaneExchange:
    lane = Lane(key(), 7, keeper)
    lane.opened(connection, now=5.0)
    return LaneExchange(lane, keeper)


ILLEGAL = [pair for pair in itertools.product(LaneState, LaneStep) if pair not in TRANSITIONS]


@pytest.mark.parametrize(("state", "step"), ILLEGAL)
def test_a_step_that_is_not_in_the_table_raises_and_names_both(keeper: Keeper, state: LaneState, step: LaneStep):
    lane = Lane(key(), 1, keeper)
    lane.state = state
    with pytest.raises(IllegalLaneStep, match=f"a lane that is {state} cannot {step}"):
        lane.step(step)
    assert lane.state is state


def test_every_state_is_reachable_and_nothing_leaves_closed():
    reached = {LaneState.CONNECTING, *TRANSITIONS.values()}
    assert reached == set(LaneState)
    left = {after for (before, _), after in TRANSITIONS.items() if before is LaneState.CLOSED}
    assert left == {LaneState.CLOSED}


def test_only_an_open_lane_can_be_borrowed():
    assert [state for state, step in TRANSITIONS if step is LaneStep.BORROW] == [LaneState.OPEN]


def test_a_lane_is_alive_while_it_can_carry_a_response(keeper: Keeper):
    lane = Lane(key(), 1, keeper)
    alive = []
    for state in LaneState:
        lane.state = state
        if lane.alive:
            alive.append(state)
    assert alive == [LaneState.OPEN, LaneState.BUSY]


def test_a_lane_that_still_connects_has_no_connection(keeper: Keeper):
    with pytest.raises(RuntimeError, match="no connection yet"):
        _ = Lane(key(), 1, keeper).connection


def test_a_lane_shows_its_account_generation_and_state(exchange: LaneExchange):
    assert repr(exchange.lane) == "<Lane account 1 generation 7 busy>"


@pytest.mark.parametrize(("session", "private"), [(f"{PRIVATE_SESSION}1", True), ("thread-id:1", False), ("", False)])
def test_a_key_is_private_when_it_names_a_client_socket(session: str, private: bool):
    assert LaneKey(1, 1, session).private is private


def test_whoever_dialled_has_borrowed_the_lane(exchange: LaneExchange, connection: FakeConnection):
    assert exchange.lane.state is LaneState.BUSY
    assert exchange.lane.opened_at == 5.0
    assert connection.listener is exchange.lane


def test_a_lost_connection_is_told_to_the_pool(exchange: LaneExchange, keeper: Keeper, connection: FakeConnection):
    connection.lose()
    assert keeper.told == [("lost",)]


async def test_nothing_is_sent_on_a_lane_that_was_lost(exchange: LaneExchange, connection: FakeConnection):
    connection.lose()
    with pytest.raises(ConnectFailed) as failed:
        await exchange.send(b"{}")
    assert failed.value.code == "lane_closed"
    assert connection.written == []


async def test_a_lane_that_drains_serves_the_turn_that_has_borrowed_it(
    exchange: LaneExchange, connection: FakeConnection
):
    exchange.lane.step(LaneStep.RETIRE)
    await exchange.send(b"{}")
    assert connection.written == [b"{}"]


async def test_all_messages_that_are_there_become_events(exchange: LaneExchange, connection: FakeConnection):
    connection.push(LIMITS, CREATED)
    events = await exchange.receive()
    assert [event.kind for event in events] == [Kind.METADATA, Kind.CREATED]
    assert [event.data for event in events] == [LIMITS, CREATED]


async def test_plain_events_are_offered_and_only_what_means_something_is_returned(
    exchange: LaneExchange, connection: FakeConnection
):
    passed: list[Event] = []
    connection.push(DELTA, DELTA, COMPLETED, DELTA)
    events = await exchange.receive(lambda events: not passed.extend(events))
    assert [event.data for event in passed] == [DELTA, DELTA]
    assert [event.data for event in events] == [COMPLETED, DELTA]


async def test_plain_events_that_are_not_passed_on_are_returned(exchange: LaneExchange, connection: FakeConnection):
    connection.push(DELTA)
    events = await exchange.receive(lambda events: False)
    assert [event.data for event in events] == [DELTA]


async def test_a_binary_frame_ends_the_response(exchange: LaneExchange, connection: FakeConnection):
    connection.push(CREATED)
    connection.got_binary = True
    with pytest.raises(UpstreamLost, match="binary"):
        await exchange.receive()


def test_the_handshakes_headers_have_names_in_lower_case(exchange: LaneExchange, connection: FakeConnection):
    assert exchange.headers() == {}
    connection.response = Handshake(Headers({"X-Models-Etag": "1", "openai-model": "m"}))
    assert exchange.headers() == {"x-models-etag": "1", "openai-model": "m"}


async def test_a_backlog_is_told_to_the_turn_while_it_watches_and_to_the_pool_otherwise(
    exchange: LaneExchange, keeper: Keeper, connection: FakeConnection
):
    grown: list[int] = []
    connection.push(b"12345")
    exchange.watch_backlog(grown.append)
    connection.push(b"678")
    assert exchange.backlog() == 8
    await exchange.close(clean=True)
    connection.push(b"9")
    assert grown == [8]
    assert keeper.told == [("idle backlog", 5), ("give back", True), ("idle backlog", 9)]


async def test_a_lost_lane_is_never_given_back_as_clean(
    exchange: LaneExchange, keeper: Keeper, connection: FakeConnection
):
    connection.lose()
    await exchange.close(clean=True)
    assert keeper.told == [("lost",), ("give back", False)]


async def test_metadata_that_came_while_a_lane_was_idle_is_read_and_returned(
    exchange: LaneExchange, connection: FakeConnection
):
    connection.push(LIMITS, b'{"type":"response.metadata","headers":{}}')
    events = await exchange.read_idle_events()
    assert [event.type for event in events] == ["codex.rate_limits", "response.metadata"]
    assert await exchange.read_idle_events() == []


@pytest.mark.parametrize("leftover", [COMPLETED, CREATED, b'{"type":"error","status":500}', b"no JSON", b"{}"])
async def test_anything_else_that_came_while_a_lane_was_idle_is_no_beginning_of_a_response(
    exchange: LaneExchange, connection: FakeConnection, leftover: bytes
):
    connection.push(LIMITS, leftover)
    with pytest.raises(ConnectFailed) as failed:
        await exchange.read_idle_events()
    assert failed.value.code == "lane_closed"


async def test_a_lane_that_breaks_while_its_idle_events_are_read_was_never_used(
    exchange: LaneExchange, connection: FakeConnection
):
    connection.push(LIMITS)
    connection.got_binary = True
    with pytest.raises(ConnectFailed) as failed:
        await exchange.read_idle_events()
    assert isinstance(failed.value.__cause__, UpstreamLost)


async def test_the_last_word_of_the_response_before_is_not_the_first_of_the_next(
    keeper: Keeper, connection: FakeConnection
):
    lane = Lane(key(), 1, keeper)
    lane.opened(connection, now=0.0)
    lane.anchor = "resp_1"
    exchange = LaneExchange(lane, keeper)
    created = CREATED.replace(b"resp_1", b"resp_2")
    connection.push(COMPLETED)
    connection.push(created)
    assert [event.data for event in await exchange.receive()] == [created]
    connection.push(COMPLETED)
    assert [event.data for event in await exchange.receive()] == [COMPLETED], "only until the response has begun"
