"""How turns end: one terminal event and nothing after it, every byte as it came, and a ledger that knows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence

import httpx
import pytest
from structlog.testing import capture_logs

from gateway.conf import Tunables
from gateway.errors import ClientLost
from gateway.protocol.events import Event, Kind
from gateway.turns.answers import Answer
from gateway.turns.dispatch import Turn
from tests.support.frames import converse, response_id, sse_events, text_of, types
from tests.support.inprocess import World, world
from tests.support.records import HELLO, KEY, request
from tests.support.scripted import scripted_sse, scripted_websocket

TRANSPORTS = ("http", "websocket")
USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 60},
    "output_tokens": 20,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 120,
}
CREATED = b'{"type":"response.created","response":{"id":"resp_1","status":"in_progress"}}'


def terminal(event_type: str, **response: object) -> bytes:
    return json.dumps({"type": event_type, "response": {"id": "resp_1", "usage": USAGE, **response}}).encode()


def block(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


async def body_of(w: World) -> bytes:
    """The bytes of a whole stream, as the client's socket gave them."""
    async with w.client.stream("POST", f"{w.url}/backend-api/codex/responses", json=dict(HELLO)) as answer:
        assert answer.status_code == 200
        return b"".join([chunk async for chunk in answer.aiter_raw()])


@pytest.mark.parametrize(
    ("event_type", "response", "outcome"),
    [
        ("response.completed", {"status": "completed"}, "completed"),
        ("response.incomplete", {"status": "incomplete"}, "incomplete"),
        ("response.failed", {"status": "failed", "error": {"code": "server_error", "message": "x"}}, "failed"),
        ("response.cancelled", {"status": "cancelled"}, "cancelled"),
        ("response.done", {}, "completed"),
        ("response.done", {"status": "incomplete"}, "incomplete"),
    ],
)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_every_way_to_end_is_delivered_and_its_tokens_are_recorded(
    event_type: str, response: dict[str, object], outcome: str, transport: str
) -> None:
    last = terminal(event_type, **response)
    upstream = scripted_sse(block(CREATED), block(last)) if transport == "http" else scripted_websocket(CREATED, last)
    async with upstream as script, world(transport=transport, base_url=script.base_url) as w:
        body = await body_of(w)
        (turn,) = await w.settled()
    assert body.count(last) == 1
    assert sse_events(body.decode())[-1]["type"] == event_type
    assert turn["outcome"] == outcome
    assert turn["response_id"] == "resp_1"
    tokens = [turn[f"{kind}_tokens"] for kind in ("input", "cached", "output", "reasoning")]
    assert tokens == [100, 60, 20, 5]
    assert turn["code"] == ("server_error" if outcome == "failed" else "")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_upstreams_own_failure_is_delivered_as_it_is(transport: str) -> None:
    async with world("ada", "bo", transport=transport, faults=("response_failed:rate_limit_exceeded",)) as w:
        events = sse_events((await w.post(dict(HELLO))).text)
        (turn,) = await w.settled()
        assert len(w.upstream.observed.requests) == 1
    assert types(events).count("response.failed") == 1
    assert events[-1]["response"]["error"]["code"] == "rate_limit_exceeded"
    assert (turn["outcome"], turn["code"], len(turn["attempts"])) == ("failed", "rate_limit_exceeded", 1)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_nothing_follows_the_terminal_event_of_a_stream(transport: str) -> None:
    async with world(transport=transport, faults=("extra_after_terminal",)) as w:
        events = sse_events((await body_of(w)).decode())
        (turn,) = await w.settled()
    assert types(events).count("response.completed") == 1
    assert types(events)[-1] == "response.completed"
    assert turn["outcome"] == "completed"


@pytest.mark.parametrize("late", ["response.completed", "error", "response.output_text.delta"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_comes_in_one_piece_with_the_terminal_event_but_after_it_is_dropped(
    late: str, transport: str
) -> None:
    events = (CREATED, terminal("response.completed"), json.dumps({"type": late, "status": 500}).encode())
    pieces = b"".join(map(block, events))
    upstream = scripted_sse(pieces) if transport == "http" else scripted_websocket(*events)
    async with upstream as script, world(transport=transport, base_url=script.base_url) as w:
        body = await body_of(w)
        (turn,) = await w.settled()
    assert types(sse_events(body.decode())) == ["response.created", "response.completed"]
    assert turn["outcome"] == "completed"


async def test_nothing_follows_the_terminal_event_on_a_websocket() -> None:
    async with world(faults=("extra_after_terminal",)) as w:
        socket = await w.websocket()
        ids = [response_id(await converse(socket)) for _ in range(3)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(socket.recv(), 0.1)
        assert [turn["response_id"] for turn in await w.settled()] == ids
    assert len(set(ids)) == 3, "the rest of one response was taken for the answer to the next request"


async def test_every_event_of_a_stream_arrives_with_the_bytes_it_came_with() -> None:
    odd = (
        block(CREATED),
        b'event: response.output_text.delta\r\ndata:{ "type" : "response.output_text.delta",\r\n'
        b'data: "delta" : "caf\xc3\xa9 \xe2\x80\xa8 \\u00e9" }\r\n\r\n',
        b'id: 7\ndata: {"type":"response.output_text.delta","delta":""}\nretry: 10\n\n',
        b'data: {"type":"something.new","x":[1, 2]}\n\n',
        block(terminal("response.completed")),
    )
    whole = b"".join(odd)
    for size in (len(whole), 7, 1):
        pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
        async with scripted_sse(*pieces) as script, world(transport="http", base_url=script.base_url) as w:
            assert await body_of(w) == whole


async def test_every_event_of_a_lane_reaches_a_websocket_with_the_text_it_came_with() -> None:
    frames = (
        CREATED,
        '{ "type" : "response.output_text.delta", "delta" : "café \u2028 \\u00e9" }'.encode(),
        b'{"x":[1, 2],"type":"something.new"}',
        terminal("response.completed"),
    )
    async with scripted_websocket(*frames) as script, world(base_url=script.base_url) as w:
        socket = await w.websocket()
        await socket.send(json.dumps({"type": "response.create", **HELLO}))
        assert [await socket.recv(decode=False) for _ in frames] == list(frames)


async def test_a_client_that_leaves_right_after_the_terminal_event_has_a_completed_turn() -> None:
    tunables = Tunables(terminal_drain_timeout=0.2)
    upstream = scripted_sse(block(CREATED), block(terminal("response.completed")), hold=True)
    async with upstream as script, world(transport="http", base_url=script.base_url, tunables=tunables) as w:
        async with w.client.stream("POST", f"{w.url}/backend-api/codex/responses", json=dict(HELLO)) as answer:
            async for line in answer.aiter_lines():
                if "response.completed" in line:
                    break
        (turn,) = await w.settled()
    assert (turn["outcome"], turn["cause"]) == ("completed", "")
    assert turn["output_tokens"] == 20


class LeavesAtTheEnd:
    """A client that is gone when the terminal event is to be delivered."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []

    def upstream_headers(self, headers: Mapping[str, str]) -> None: ...

    async def deliver(self, events: Sequence[Event]) -> None:
        if events[-1].kind is Kind.TERMINAL:
            raise ClientLost("The client has left.")

    def pass_on(self, events: Sequence[Event]) -> bool:
        return False

    async def refuse(self, answer: Answer) -> None:
        self.answers.append(answer)

    def tick(self, now: float) -> float:
        return 60.0

    async def end_silence(self) -> None: ...


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_response_that_was_complete_when_its_client_left_is_a_completed_turn(transport: str) -> None:
    with capture_logs() as logs:
        async with world(transport=transport) as w:
            client = LeavesAtTheEnd()
            with w.runtime.permits.ask(KEY, 0) as permit:
                turn = Turn(w.runtime.engine, request(at=w.runtime.gate.clock.wall()), client, permit)
                assert await turn.run() == "completed"
            (row,) = await w.settled()
    assert (row["outcome"], row["cause"]) == ("completed", "")
    assert row["output_tokens"] > 0
    assert not client.answers
    assert "dispatch_failed" not in [event["event"] for event in logs]


async def test_a_client_socket_cut_right_after_the_terminal_event_has_a_completed_turn() -> None:
    async with world() as w:
        socket = await w.websocket()
        await converse(socket)
        socket.transport.abort()
        (turn,) = await w.settled()
    assert turn["outcome"] == "completed"


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_client_that_leaves_in_the_middle_is_gone_and_no_fault_of_the_account(transport: str) -> None:
    async with world(transport=transport, faults=("slow:0.05",)) as w:
        async with w.client.stream("POST", f"{w.url}/backend-api/codex/responses", json=dict(HELLO)) as answer:
            await anext(answer.aiter_lines())
        (turn,) = await w.settled()
        await w.upstream.until(lambda observed: observed.running == 0)
        assert [account.state for account in w.runtime.registry.accounts] == ["active"]
    assert (turn["outcome"], turn["cause"]) == ("client_gone", "client_gone")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_stream_that_falls_silent_is_given_up(transport: str) -> None:
    tunables = Tunables(stream_idle_timeout=0.2)
    async with world(transport=transport, tunables=tunables, faults=("silent_after_created",)) as w:
        events = sse_events((await body_of(w)).decode())
        (turn,) = await w.settled()
    assert types(events)[-1] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "stream_idle_timeout"
    assert (turn["outcome"], turn["cause"]) == ("upstream_lost", "stream_idle_timeout")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_client_that_wants_a_document_gets_the_response_of_the_terminal_event(transport: str) -> None:
    async with world(transport=transport) as w:
        answer = await w.post({**HELLO, "stream": False}, path="/v1/responses")
        (turn,) = await w.settled()
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["output"][0]["content"][0]["text"].startswith("Hello from ada")
    assert (turn["outcome"], turn["downstream"]) == ("completed", "json")


@pytest.mark.parametrize(("route", "status"), [("/backend-api/codex", 503), ("/v1", 502)])
async def test_a_lost_upstream_has_the_status_of_its_route(route: str, status: int) -> None:
    async with world(faults=("reset_before_created",)) as w:
        answer = await w.post(dict(HELLO), path=f"{route}/responses")
        (turn,) = await w.settled()
    assert answer.status_code == turn["status"] == status
    assert answer.json()["error"]["code"] == turn["code"] == "upstream_connection_lost"


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_turn_is_explained_by_its_row(transport: str) -> None:
    async with world("ada", "bo", transport=transport) as w:
        events = sse_events((await w.post(dict(HELLO), **{"session-id": "s-1"})).text)
        (turn,) = await w.settled()
    assert text_of(events).startswith("Hello from ada")
    phases = [turn[f"{phase}_ms"] for phase in ("admitted", "routed", "sent", "started", "streaming", "settled")]
    assert None not in phases
    assert phases == sorted(phases)
    (attempt,) = turn["attempts"]
    assert attempt["account"] == turn["account_name"] == "ada"
    assert attempt["transport"] == turn["upstream"] == transport
    assert attempt["chosen_from"] == "2 accounts: 2 usable"
    assert turn["events"] >= len(events)
    assert turn["session"].startswith("session-id:")


async def test_a_client_that_vanishes_while_it_waits_for_a_stream_leaves_no_trace_upstream() -> None:
    async with world(streams=1, faults=("silent_after_created",)) as w:
        blocker = await w.websocket()
        await blocker.send(json.dumps({"type": "response.create", **HELLO}))
        await w.upstream.until(lambda observed: observed.running == 1)
        with pytest.raises(httpx.ReadTimeout):
            await w.client.post(f"{w.url}/backend-api/codex/responses", json=dict(HELLO), timeout=0.1)
        async with asyncio.timeout(5):
            while w.runtime.permits.held > 1:
                await asyncio.sleep(0.005)
        assert w.runtime.streams.waiting == 0
        assert len(w.upstream.observed.requests) == 1
