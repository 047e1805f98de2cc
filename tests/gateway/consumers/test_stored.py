"""Stored responses: who made one may ask for it, and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from accounts.states import Kind
from gateway.conf import Tunables
from gateway.consumers.stored import wants_stream
from gateway.keys import KeySnapshot, new_key
from gateway.turns.stored import MOST_AT_ONCE
from tests.gateway.consumers.asgi import V1, Edge, HttpClient, body, edge, events
from tests.support.proxies import proxy


@pytest.fixture
async def made() -> AsyncIterator[Edge]:
    async with edge("ada", "bo", kind=Kind.OPENAI) as made:
        yield made


async def stored(made: Edge, **members: Any) -> str:
    """The id of a response that an account has stored."""
    answer = await made.answer(V1, body(stream=False, store=True, **members))
    assert answer.status == 200
    return str(answer.json()["id"])


async def ask(made: Edge, path: str, method: str = "GET", query: bytes = b"", **headers: str) -> HttpClient:
    client = made.request(f"{V1}/{path}", b"" if method == "POST" else None, method, query=query, **headers)
    await client.ended()
    return client


async def test_a_stored_response_is_retrieved_listed_and_deleted(made: Edge):
    response_id = await stored(made)
    assert (await ask(made, response_id)).json()["output"][0]["content"][0]["text"] == "Hello from ada."
    items = (await ask(made, f"{response_id}/input_items", query=b"limit=5&order=asc")).json()
    assert items["data"][0]["content"][0]["text"] == "hi"
    assert (await ask(made, response_id, "DELETE")).json() == {
        "id": response_id, "object": "response", "deleted": True
    }  # fmt: skip
    gone = await ask(made, response_id)
    assert (gone.status, gone.json()["error"]["param"]) == (404, "id")


async def test_after_a_restart_the_ledger_knows_the_owner(made: Edge):
    response_id = await stored(made)
    await made.settled()
    async with edge("ada", kind=Kind.OPENAI) as other:
        assert (await ask(other, response_id)).status == 404
        other.store.turns.update(made.store.turns)
        other.store.accounts[1] = made.store.accounts[1]
        await other.runtime.registry.refresh()
        key_id = next(iter(made.store.turns.values()))["key_id"]
        assert key_id == 1
        assert (await ask(other, response_id)).json()["id"] == response_id


async def test_another_clients_response_does_not_exist(made: Edge):
    response_id = await stored(made)
    stranger = new_key()
    made.store.keys.append(KeySnapshot(2, "stranger", stranger.lookup, stranger.digest))
    made.runtime.keys.replace(await made.store.load_keys())
    for path, method in ((response_id, "GET"), (response_id, "DELETE"), (f"{response_id}/cancel", "POST")):
        answer = await ask(made, path, method, authorization=f"Bearer {stranger.text}")
        assert (answer.status, answer.json()["error"]["code"]) == (404, "response_not_found")
    assert (await ask(made, response_id)).status == 200


async def test_a_synchronous_response_cannot_be_cancelled_says_its_account(made: Edge):
    answer = await ask(made, f"{await stored(made)}/cancel", "POST")
    assert (answer.status, answer.json()["error"]["message"]) == (400, "Cannot cancel a synchronous response.")


@pytest.mark.parametrize("response_id", ["resp_unknown", "a" * 300, "..%2f", "x y"])
async def test_an_id_nobody_knows_is_404_and_reaches_no_account(made: Edge, response_id: str):
    answer = await ask(made, response_id)
    assert (answer.status, answer.json()["error"]["code"]) == (404, "response_not_found")
    assert not made.upstream.observed.requests


async def test_what_a_stored_response_does_not_take_is_refused(made: Edge):
    assert (await ask(made, "resp_1", "POST")).status == 405
    assert (await ask(made, "resp_1/cancel")).status == 405
    assert (await ask(made, "resp_1/other")).status == 404
    assert (await ask(made, "resp_1", authorization="Bearer x")).status == 401


async def test_an_account_that_is_gone_or_needs_its_operator_is_told_apart(made: Edge):
    response_id = await stored(made)
    await made.settled()
    account = made.store.accounts[1]
    del made.store.accounts[1]
    await made.runtime.registry.refresh()
    assert (await ask(made, response_id)).status == 404
    made.store.accounts[1] = account
    await made.runtime.registry.refresh()
    assert (await ask(made, response_id)).status == 200


@pytest.mark.parametrize("kept", [True, False])
async def test_an_account_with_a_proxy_is_asked_by_it_and_by_no_other_way(made: Edge, kept: bool):
    response_id = await stored(made)
    account = made.store.accounts[1]
    async with proxy("socks5", fault=None if kept else "refuse") as way:
        made.store.accounts[1] = replace(account, proxy=way.url, revision=2)
        await made.runtime.registry.refresh()
        for query in (b"", b"stream=true"):
            assert (await ask(made, response_id, query=query)).status == (200 if kept else 502)
        assert way.asked


class TestListening:
    """`stream=true`: the events come from the account, as it sends them."""

    async def begun(self, made: Edge, events: int = 10, interval: float = 0.05) -> str:
        """The id of a response that runs in the background."""
        model = f"gpt-5.5;events={events};interval={interval}"
        asking = made.request(V1, body(stream=False, store=True, background=True, model=model))
        await asking.until(lambda: asking.complete)
        return str(asking.json()["id"])

    def listen(self, made: Edge, response_id: str, query: bytes = b"stream=true") -> HttpClient:
        return made.request(f"{V1}/{response_id}", None, "GET", query=query)

    async def test_one_that_has_ended_comes_from_its_beginning_to_its_end(self, made: Edge):
        client = await ask(made, await stored(made), query=b"stream=true")
        told = events(client.body)
        assert client.headers["content-type"].startswith("text/event-stream")
        assert (told[0]["type"], told[-1]["type"]) == ("response.created", "response.completed")
        assert [event["sequence_number"] for event in told] == list(range(len(told)))
        assert client.complete

    async def test_one_that_runs_is_heard_until_it_ends(self, made: Edge):
        client = self.listen(made, await self.begun(made))
        await client.until(lambda: b"output_text.delta" in client.body)
        assert b"response.completed" not in client.body
        await client.ended()
        assert events(client.body)[-1]["type"] == "response.completed"

    async def test_it_goes_on_after_the_event_that_is_named(self, made: Edge):
        response_id = await stored(made)
        told = events((await ask(made, response_id, query=b"stream=true&starting_after=3")).body)
        assert told[0]["sequence_number"] == 4

    async def test_behind_the_last_event_the_stream_is_empty_and_whole(self, made: Edge):
        client = await ask(made, await stored(made), query=b"starting_after=999&stream=true")
        assert (client.status, client.body, client.complete) == (200, b"", True)

    async def test_what_the_account_refuses_is_told_with_its_status(self, made: Edge):
        response_id = await stored(made)
        client = await ask(made, response_id, query=b"stream=true&starting_after=x")
        assert (client.status, client.json()["error"]["param"]) == (400, "starting_after")
        assert (await ask(made, "resp_unknown", query=b"stream=true")).status == 404
        assert (await ask(made, response_id, query=b"stream=true", authorization="Bearer x")).status == 401

    async def test_whoever_leaves_ends_the_listening_and_not_the_response(self, made: Edge):
        response_id = await self.begun(made)
        client = self.listen(made, response_id)
        await client.until(lambda: b"delta" in client.body)
        client.leave()
        await client.ended()
        async with asyncio.timeout(5):
            while [record.outcome for record in made.upstream.observed.requests][-1] != "client_gone":
                await asyncio.sleep(0.01)
        again = await ask(made, response_id, query=b"stream=true")
        assert events(again.body)[-1]["type"] == "response.completed"
        assert not made.runtime.gate.forwards

    async def test_a_stream_that_is_lost_says_nothing_of_the_response(self, made: Edge):
        response_id = await self.begun(made, events=100)
        client = self.listen(made, response_id)
        await client.until(lambda: b"delta" in client.body)
        await made.upstream.__aexit__(None, None, None)
        await client.ended()
        last = events(client.body)[-1]
        assert (last["type"], last["code"]) == ("error", "upstream_connection_lost")
        assert b"response.failed" not in client.body
        assert client.complete

    async def test_a_gateway_that_stops_lets_the_client_know(self, made: Edge):
        client = self.listen(made, await self.begun(made, events=4, interval=0.3))
        await client.until(lambda: b"response.created" in client.body)
        stopping = asyncio.ensure_future(made.runtime.drain())
        await client.ended()
        assert events(client.body)[-1]["type"] in ("error", "response.completed")
        await stopping

    async def test_a_silence_of_the_account_is_broken_for_the_client(self):
        tunables = Tunables(keepalive_interval=0.05, header_wait=0.05, close_timeout=0.5, drain_timeout=2)
        async with edge("ada", kind=Kind.OPENAI, tunables=tunables) as made:
            client = self.listen(made, await self.begun(made, events=3, interval=0.3))
            await client.ended()
            assert client.body.count(b": keepalive\n\n") > 2
            assert events(client.body)[-1]["type"] == "response.completed"

    async def test_a_client_that_takes_nothing_is_left_in_time(self):
        tunables = Tunables(client_stall_timeout=0.2, close_timeout=0.2, drain_timeout=2)
        async with edge("ada", kind=Kind.OPENAI, tunables=tunables) as made:
            client = self.listen(made, await self.begun(made, events=100))
            await client.until(lambda: b"delta" in client.body)
            client.takes.clear()
            await client.ended()
            assert not client.complete
            await made.upstream.until(lambda seen: seen.requests[-1].outcome == "client_gone")

    async def test_an_account_that_says_nothing_is_given_up_in_time(self):
        tunables = Tunables(stream_idle_timeout=0.2, close_timeout=0.2, drain_timeout=2)
        async with edge("ada", kind=Kind.OPENAI, tunables=tunables) as made:
            client = self.listen(made, await self.begun(made, events=3, interval=1))
            await client.ended()
            assert (events(client.body)[-1]["type"], events(client.body)[-1]["code"]) == (
                "error",
                "stream_idle_timeout",
            )

    async def test_no_more_listen_than_may(self, made: Edge):
        response_id = await self.begun(made, events=4, interval=0.2)
        made.runtime.engine.stored._followed = MOST_AT_ONCE
        refused = await ask(made, response_id, query=b"stream=true")
        assert (refused.status, refused.json()["error"]["code"]) == (503, "too_many_calls")


def test_only_the_response_itself_can_be_listened_to():
    def wants(path: str, query: str, method: str = "GET") -> bool:
        return wants_stream({"path": V1 + path, "query_string": query.encode(), "method": method})

    assert wants("/resp_1", "starting_after=1&stream=True")
    assert wants("/resp_1", "stream=1")
    assert not wants("/resp_1", "stream=false")
    assert not wants("/resp_1", "")
    assert not wants("/resp_1", "stream=true", "DELETE")
    assert not wants("/resp_1/input_items", "stream=true")
