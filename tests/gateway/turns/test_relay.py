"""What the relay notes while events pass: the start, the silence, the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence

from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.keys import KeySnapshot
from gateway.protocol.body import parse_body
from gateway.protocol.events import Event, read_event
from gateway.turns.record import TurnRecord
from gateway.turns.relay import Relay
from gateway.turns.request import Downstream, Route, TurnRequest
from gateway.turns.turn import Phase, Step
from gateway.turns.watch import Watch
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

    async def receive(self) -> list[Event]:
        await asyncio.sleep(0.001)
        assert self.watch is not None
        self.waiting.append(self.watch.waiting_since)
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

    async def deliver(self, events: Sequence[Event]) -> None:
        assert self.watch is not None
        self.waiting.append(self.watch.waiting_since)
        await super().deliver(events)


async def relayed(*events: dict[str, object]) -> tuple[Script, Client, Account, TurnRecord]:
    """Relay `events` as one turn that was sent at time 1."""
    body = parse_body(b'{"model":"m","store":false,"input":[]}')
    request = TurnRequest(KeySnapshot(1, "k", "", ""), Route.CODEX, Downstream.SSE, [], body, 0.0)
    record, client, account, script = TurnRecord(request, Clock()), Client(), Account(), Script(*events)
    for step in (Step.ADMIT, Step.ROUTE, Step.SEND):
        record.step(step)
    watch = Watch(Tunables(), client, lambda error: None)
    script.watch = client.watch = watch
    watch.waiting_since = 1.0
    await Relay(record, client, watch, account).run(script, [])
    return script, client, account, record


async def test_metadata_is_passed_on_and_does_not_count_as_the_start():
    script, client, account, _record = await relayed(METADATA, METADATA, CREATED, COMPLETED)
    assert script.waiting[:3] == [1.0, 1.0, 1.0]
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
