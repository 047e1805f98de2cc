"""What a turn and an event cost, in counts that no busy machine can change.

The limits stand a little above what was counted when they were set; lower one when the code behind it got cheaper.
Any query would fail these tests, since none of them may use a database.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from gateway.keys import KeySnapshot
from gateway.protocol.body import parse_body
from gateway.turns.request import Downstream, Route, TurnRequest
from gateway.turns.ties import Tie
from gateway.turns.turn import BodyKind
from tests.bench.answers import Shape
from tests.bench.requests import KIB, body, encode
from tests.bench.stepped import Calls, SteppedGateway, stepped_gateway

SHORT = Shape(events=9, interval=0)
# What the selection may do for each account that it chooses from, in calls.
CALLS_PER_ACCOUNT = 20
# And the search for bound state for each message of a body.
CALLS_PER_MESSAGE = 3
SESSIONS = 100_000

Carry = Callable[[dict[str, object]], Awaitable[Calls]]


@dataclass(frozen=True)
class Way:
    """How a turn is carried, and what one event may cost on it, in calls of Python functions."""

    name: str
    transport: str
    calls_per_event: int

    def of(self, gateway: SteppedGateway) -> Carry:
        return gateway.websocket if self.name == "WebSocket" else gateway.post


# How reads fall together moves the figure a little from run to run (83 over HTTP, 14 on lanes), hence the room.
HTTP = Way("SSE on HTTP", "http", calls_per_event=88)
LANE = Way("SSE on a lane", "websocket", calls_per_event=15)
WEBSOCKET = Way("WebSocket", "websocket", calls_per_event=15)

each_way = pytest.mark.parametrize("way", [HTTP, LANE, WEBSOCKET], ids=lambda way: way.name)


async def cheapest(carry: Carry, shape: Shape, size: int = 4 * KIB) -> Calls:
    """The calls of the cheapest of three turns: the upkeep of each second falls into one of them at the most."""
    return min([await carry(body(shape, size)) for _ in range(3)], key=lambda calls: calls.total)


@each_way
async def test_an_event_costs_a_bounded_number_of_calls_and_no_decoding(way: Way) -> None:
    async with stepped_gateway(transport=way.transport) as gateway:
        carry = way.of(gateway)
        await carry(body(SHORT, 4 * KIB))
        fewer = await cheapest(carry, Shape(events=100, interval=0))
        more = await cheapest(carry, Shape(events=200, interval=0))

    per_event = (more.total - fewer.total) / 100
    assert 0 < per_event <= way.calls_per_event, (more.by_name - fewer.by_name).most_common(40)
    assert more.decodes == fewer.decodes


@each_way
async def test_a_turn_decodes_its_body_once_however_long_the_conversation_is(way: Way) -> None:
    async with stepped_gateway(transport=way.transport) as gateway:
        carry = way.of(gateway)
        await carry(body(SHORT, 4 * KIB))
        short = await cheapest(carry, SHORT)
        long = await cheapest(carry, SHORT, 400 * KIB)

    assert long.by_name["parse_body"] == 1
    # The type that the whole input is decoded to.
    assert long.decodes["list[object] | str | None"] == 1
    assert long.decodes == short.decodes


@each_way
async def test_a_further_message_of_the_conversation_costs_hardly_more_than_a_look_at_it(way: Way) -> None:
    async with stepped_gateway(transport=way.transport) as gateway:
        carry = way.of(gateway)
        await carry(body(SHORT, 4 * KIB))
        short = await cheapest(carry, SHORT, 40 * KIB)
        long = await cheapest(carry, SHORT, 400 * KIB)

    assert long.total - short.total <= messages(400 * KIB) * CALLS_PER_MESSAGE, (
        long.by_name - short.by_name
    ).most_common(20)


@each_way
async def test_a_turn_is_written_down_once_before_its_first_event_and_once_after_its_last(way: Way) -> None:
    async with stepped_gateway(transport=way.transport) as gateway:
        await way.of(gateway)(body(SHORT, 4 * KIB))
        writes = gateway.store.writes

    assert gateway.writes_before_first_event == 1
    assert [[outcome for _, outcome in batch] for batch in writes] == [[""], ["completed"]]


async def test_many_sessions_cost_a_turn_nothing() -> None:
    async with stepped_gateway(transport="http") as gateway:
        await gateway.post(body(SHORT, 4 * KIB))
        few = await cheapest(gateway.post, SHORT)
        bind_sessions(gateway, SESSIONS)
        many = await cheapest(gateway.post, SHORT)

    assert many.total <= few.total * 1.2


async def test_many_accounts_cost_a_turn_no_more_than_looking_at_each_once() -> None:
    counted = {}
    for accounts in (2, 200):
        async with stepped_gateway(accounts=accounts, transport="http") as gateway:
            await gateway.post(body(SHORT, 4 * KIB))
            counted[accounts] = await cheapest(gateway.post, SHORT)

    more = counted[200].by_name - counted[2].by_name
    assert counted[200].total - counted[2].total <= 198 * CALLS_PER_ACCOUNT, more.most_common(40)
    assert counted[200].decodes == counted[2].decodes


def messages(size: int) -> int:
    """How many messages a body of `size` bytes holds."""
    items = body(SHORT, size)["input"]
    assert isinstance(items, list)
    return len(items)


def bind_sessions(gateway: SteppedGateway, count: int) -> None:
    """Let so many other conversations have been carried before."""
    parsed = parse_body(encode(body(SHORT, 4 * KIB)))
    key = KeySnapshot(1, "tests", "", "")
    for number in range(count):
        request = TurnRequest(
            key=key,
            route=Route.CODEX,
            downstream=Downstream.SSE,
            headers=[("session-id", f"other-{number}")],
            body=parsed,
            received_at=0.0,
            id=uuid.uuid4(),
        )
        gateway.runtime.engine.router.ties.bind(request, Tie(parsed, BodyKind.FREE), 1, spilled=False, shown=None)
