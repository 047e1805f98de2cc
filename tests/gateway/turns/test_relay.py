"""What the relay notes while events pass: the start, the silence, the end."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping, Sequence

import pytest

from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.keys import KeySnapshot
from gateway.protocol.body import parse_body
from gateway.protocol.events import Event, Kind, read_event
from gateway.turns.record import TurnRecord
from gateway.turns.relay import Relay
from gateway.turns.request import Downstream, Route, TurnRequest
from gateway.turns.turn import Phase, Step
from gateway.turns.watch import Watch
from gateway.upstream.exchange import PassOn
from tests.gateway.turns.test_cancellation import Listener

METADATA = {"type": "codex.rate_limits", "rate_limits": {}}
CREATED = {"type": "response.created", "response": {"id": "r"}}
DELTA = {"type": "response.output_text.delta", "delta": "a"}
COMPLETED = {"type": "response.completed", "response": {"id": "r", "status": "completed"}}


class Script:
    """An exchange that gives one event at each read, and notes since when the watch was waiting then."""

    transport = "websocket"

    def __init__(self, *events: dict[str, object]) -> None:
        self.events = [read_event(json.dumps(event).encode()) for event in events]
        self.waiting: list[float | None] = []
        self.published: list[str] = []
        self.watch: Watch | None = None

    async def receive(self, pass_on: PassOn | None = None) -> list[Event]:
        await asyncio.sleep(0.001)
        assert self.watch is not None
        self.waiting.append(self.watch.waiting_since)
        while pass_on is not None and self.events[0].kind is Kind.OTHER and pass_on([self.events[0]]):
            self.events.pop(0)
            self.waiting.append(self.watch.waiting_since)
            await asyncio.sleep(0.001)
        return [self.events.pop(0)]

    def publish(self, response_id: str) -> None:
        self.published.append(response_id)

    def remember(self, chain: object) -> None: ...


class Account:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def told_limits(self, event: Event) -> None:
        self.told.append(event.type)

    def told_headers(self, headers: Mapping[str, str]) -> None:
        self.told.extend(headers)

    def completed(self, response_id: str) -> None:
        self.told.append(response_id)


class Client(Listener):
    """Notes since when the watch was waiting while events were delivered."""

    def __init__(self) -> None:
        super().__init__()
        self.watch: Watch | None = None
        self.waiting: list[float | None] = []
        self.passes = False
        self.passed: list[Event] = []

    def pass_on(self, events: Sequence[Event]) -> bool:
        if self.passes:
            self.passed.extend(events)
        return self.passes

    async def deliver(self, events: Sequence[Event]) -> None:
        assert self.watch is not None
        self.waiting.append(self.watch.waiting_since)
        await super().deliver(events)


async def relayed(*events: dict[str, object], passes: bool = False) -> tuple[Script, Client, Account, TurnRecord]:
    """Relay `events` as one turn that was sent at time 1."""
    body = parse_body(b'{"model":"m","store":false,"input":[]}')
    request = TurnRequest(KeySnapshot(1, "k", "", ""), Route.CODEX, Downstream.SSE, [], body, 0.0, uuid.uuid4())
    record, client, account, script = TurnRecord(request, Clock()), Client(), Account(), Script(*events)
    for step in (Step.ADMIT, Step.ROUTE, Step.SEND):
        record.step(step)
    watch = Watch(Tunables(), client.tick, lambda error: None)
    script.watch = client.watch = watch
    client.passes = passes
    watch.waiting_since = 1.0
    await Relay(record, client, watch, account).run(script, [])
    return script, client, account, record


async def test_metadata_is_passed_on_and_does_not_count_as_the_start():
    script, client, account, _record = await relayed(METADATA, METADATA, CREATED, COMPLETED)
    assert script.waiting[:3] == pytest.approx([1.0, 1.0, 1.0], abs=0.5)
    assert client.waiting == [None] * 4, "a client that is slow to take metadata is no silence of the upstream"
    assert [event.type for event in client.events][:2] == ["codex.rate_limits"] * 2
    assert account.told == ["codex.rate_limits", "codex.rate_limits", "r"]


async def test_after_the_start_each_event_has_its_own_time_and_delivery_has_none():
    script, client, _, record = await relayed(CREATED, DELTA, COMPLETED)
    assert client.waiting == [None, None, None]
    assert script.waiting[1] is not None
    assert script.waiting[1] > 1.0
    assert script.waiting[1] < script.waiting[2]
    assert record.phase is Phase.STREAMING


async def test_the_response_has_its_owner_before_the_client_sees_the_end():
    script, client, _, _ = await relayed(CREATED, COMPLETED)
    assert script.published == ["r"]
    assert client.events[-1].type == "response.completed"


async def test_the_end_of_another_response_ends_nothing_and_reaches_nobody():
    """An upstream that says its last word twice may say it the second time when the next response has begun."""
    foreign = {"type": "response.completed", "response": {"id": "before", "status": "completed"}}
    script, client, _, _ = await relayed(CREATED, foreign, DELTA, COMPLETED)
    assert [event.type for event in client.events] == [CREATED["type"], DELTA["type"], COMPLETED["type"]]
    assert script.published == ["r"]


async def test_plain_events_of_a_stream_that_has_begun_go_past_the_task_and_are_counted():
    script, client, _, record = await relayed(DELTA, DELTA, DELTA, COMPLETED, passes=True)
    assert [event.type for event in client.events] == [DELTA["type"], COMPLETED["type"]]
    assert [event.type for event in client.passed] == [DELTA["type"]] * 2
    assert record.events == 4
    assert record.response_bytes == sum(len(json.dumps(event)) for event in (DELTA, DELTA, DELTA, COMPLETED))
    waiting = [since for since in script.waiting[1:] if since is not None]
    assert waiting == sorted(set(waiting)), "each of them was a sign of life"
