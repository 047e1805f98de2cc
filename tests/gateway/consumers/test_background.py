"""Responses in the background: sent once, run to their end, and there to be asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from accounts.states import Kind
from gateway.conf import Tunables
from gateway.consumers.background import BackgroundSink
from gateway.errors import ClientLost
from tests.gateway.consumers.asgi import V1, Client, Edge, HttpClient, body, edge, events, frame

SLOW = {"sim_interval": "0.05"}


@pytest.fixture
async def made() -> AsyncIterator[Edge]:
    async with edge(kind=Kind.OPENAI, tunables=Tunables(close_timeout=0.5, drain_timeout=2)) as made:
        yield made


def background(**members: Any) -> dict[str, Any]:
    return body(store=True, background=True, stream=False, metadata=SLOW, **members)


async def retrieve(made: Edge, path: str, method: str = "GET") -> HttpClient:
    client = made.request(f"{V1}/{path}", b"" if method == "POST" else None, method)
    await client.ended()
    return client


async def until_status(made: Edge, response_id: str, status: str) -> dict[str, Any]:
    async with asyncio.timeout(5):
        while (answer := (await retrieve(made, response_id)).json())["status"] != status:
            await asyncio.sleep(0.02)
    return dict(answer)


async def test_the_client_gets_the_response_as_it_begins_and_asks_for_its_end(made: Edge):
    client = made.request(V1, background())
    await client.until(lambda: client.complete)
    begun = client.json()
    assert (begun["status"], begun["background"]) == ("queued", True)
    client.leave()
    ended = await until_status(made, begun["id"], "completed")
    assert ended["output"][0]["content"][0]["text"] == "Hello from ada."
    (turn,) = await made.settled()
    assert (turn["outcome"], turn["response_id"]) == ("completed", begun["id"])
    assert turn["output_tokens"] == ended["usage"]["output_tokens"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_cancels_nothing(made: Edge, stream: bool):
    client = made.request(V1, background() | {"stream": stream})
    await client.until(lambda: client.sent)
    client.leave()
    await client.ended()
    assert made.runtime.permits.held == 1
    (turn,) = await made.settled()
    assert (turn["outcome"], turn["cause"]) == ("completed", "")
    assert [record.outcome for record in made.upstream.observed.requests] == ["completed"]
    assert made.runtime.permits.held == 0


async def test_a_client_that_leaves_its_websocket_cancels_nothing(made: Edge):
    client = await made.socket(V1)
    await client.frame(frame(store=True, background=True, metadata=SLOW))
    await client.has("response.created")
    client.leave()
    await client.ended()
    assert made.runtime.permits.held == 1
    (turn,) = await made.settled()
    assert (turn["outcome"], turn["cause"], turn["upstream"]) == ("completed", "", "http")
    assert [record.outcome for record in made.upstream.observed.requests] == ["completed"]
    assert (await retrieve(made, client.frames[0]["response"]["id"])).json()["status"] == "completed"


async def test_a_websocket_goes_on_after_a_response_in_the_background(made: Edge):
    client = await made.socket(V1)
    await client.frame(frame(store=True, background=True))
    await client.has("response.completed")
    await client.frame(frame())
    await client.has("response.completed", 2)
    client.leave()
    await client.ended()


@pytest.mark.parametrize("websocket", [True, False], ids=["websocket", "sse"])
async def test_a_client_that_takes_nothing_does_not_hold_it_up(websocket: bool):
    tunables = Tunables(client_stall_timeout=0.05, close_timeout=0.05)
    async with edge(kind=Kind.OPENAI, tunables=tunables) as made:
        client: Client
        if websocket:
            client = socket = await made.socket(V1)
            await socket.frame(frame(store=True, background=True, metadata=SLOW))
            await socket.has("response.created")
        else:
            client = made.request(V1, background() | {"stream": True})
            await client.until(lambda: len(client.sent) > 1)
        client.takes.clear()
        (turn,) = await made.settled()
        assert turn["outcome"] == "completed"
        client.leave()
        await client.ended()


async def test_a_keepalive_that_is_not_taken_does_not_hold_it_up():
    tunables = Tunables(client_stall_timeout=0.05, close_timeout=0.05, keepalive_interval=0.05)
    async with edge(kind=Kind.OPENAI, tunables=tunables, faults=("slow:0.1",)) as made:
        client = made.request(V1, body(store=True, background=True))
        await client.until(lambda: b": keepalive" in client.body)
        client.takes.clear()
        (turn,) = await made.settled()
        assert turn["outcome"] == "completed"
        client.leave()
        await client.ended()


async def test_a_server_that_ends_the_application_cancels_nothing(made: Edge):
    client = made.request(V1, background())
    await client.until(lambda: client.complete)
    client.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await client.ended()
    (turn,) = await made.settled()
    assert turn["outcome"] == "completed"


async def test_its_id_is_written_down_before_the_client_knows_it(made: Edge):
    client = made.request(V1, background())
    await client.until(lambda: client.sent)
    (row,) = made.store.turns.values()
    await client.until(lambda: client.complete)
    assert row["response_id"] == client.json()["id"]
    assert not row["outcome"]
    await made.settled()


async def test_it_is_cancelled_by_who_asks_for_that(made: Edge):
    client = made.request(V1, background())
    await client.until(lambda: client.complete)
    response_id = client.json()["id"]
    assert (await retrieve(made, f"{response_id}/cancel", "POST")).json()["status"] == "cancelled"
    assert (await retrieve(made, response_id)).json()["status"] == "cancelled"
    await made.settled()


@pytest.mark.parametrize("fault", ["reset", "eof", "no_terminal", "reset_before_created"])
async def test_it_is_never_sent_twice(made: Edge, fault: str):
    made.upstream.faults.add(fault)
    client = made.request(V1, background())
    await client.ended()
    (turn,) = await made.settled()
    assert turn["outcome"] == "upstream_lost"
    assert len(made.upstream.observed.requests) == 1


async def test_losing_sight_of_it_is_not_held_against_its_account(made: Edge):
    for _ in range(8):
        made.upstream.faults.add("eof#1")
        client = made.request(V1, background())
        await client.ended()
    assert events((await made.answer(V1, body())).body)[-1]["type"] == "response.completed"


async def test_what_is_refused_before_it_begins_is_a_status(made: Edge):
    made.upstream.faults.add("rate_limit:1")
    answer = await made.answer(V1, background())
    assert (answer.status, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")


class Gone:
    """A sink whose client has left."""

    def __init__(self) -> None:
        self.calls = 0

    def upstream_headers(self, headers: object) -> None: ...

    async def deliver(self, events: object) -> None:
        self.calls += 1
        raise ClientLost("gone")

    def pass_on(self, events: object) -> bool:
        return False

    async def refuse(self, answer: object) -> None:
        raise ClientLost("gone")

    def tick(self, now: float) -> float:
        raise ClientLost("gone")

    async def end_silence(self) -> None: ...


async def test_a_client_that_is_gone_is_told_nothing_more():
    gone = Gone()
    sink = BackgroundSink(gone)
    await sink.deliver([])
    await sink.deliver([])
    assert gone.calls == 1
    assert sink.pass_on([])
    assert not BackgroundSink(gone).pass_on([])
    assert sink.tick(0) > 60
    assert BackgroundSink(Gone()).tick(0) > 60
