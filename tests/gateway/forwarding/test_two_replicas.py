"""Two replicas over one store: HTTP turns go to where their conversation's lanes are, and never anywhere twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import httpx
import pytest
import websockets
from structlog.testing import capture_logs

from accounts.states import State
from gateway.conf import Tunables
from gateway.metering.limits import KeyLimits, Limit, Span, Unit
from gateway.runtime import Runtime
from gateway.upstream.peers import lost
from tests.gateway.turns.test_continuation import events, full, message, returned
from tests.support.inprocess import World, running, world

CODEX = "/backend-api/codex/responses"


@dataclass
class Pair:
    """A world whose gateway, Ada, has a second one beside it, Bo."""

    world: World
    bo: Runtime
    port: int

    @property
    def ada(self) -> Runtime:
        return self.world.runtime

    async def post_to_bo(self, body: dict[str, Any], path: str = CODEX, **headers: str) -> httpx.Response:
        return await self.world.client.post(f"http://127.0.0.1:{self.port}{path}", json=body, headers=headers)

    def seen(self) -> list[dict[str, Any]]:
        return self.world.upstream.observed.to_json()["requests"]

    async def settled(self) -> list[dict[str, Any]]:
        async with asyncio.timeout(10):
            for runtime in (self.ada, self.bo):
                await runtime.permits.all_back()
                while runtime.ledger.unwritten:
                    await asyncio.sleep(0.005)
        return await self.world.settled()


@asynccontextmanager
async def pair(*names: str, tunables: Tunables | None = None, **changes: Any) -> AsyncIterator[Pair]:
    tunables = tunables or Tunables(lease_ttl=3.0)
    async with world(*names, tunables=tunables, **changes) as w:
        w.store.lease_ttl = tunables.lease_ttl
        async with running(w.store, tunables) as (bo, port):
            await w.runtime.membership.tick()
            yield Pair(w, bo, port)


async def test_a_full_request_that_extends_a_lane_elsewhere_is_carried_there_as_a_delta() -> None:
    async with pair() as p:
        first = await p.world.post(full(message("one")), **{"thread-id": "t"})
        await p.settled()
        history = [message("one"), *returned(first.text), message("two")]
        second = await p.post_to_bo(full(*history), **{"thread-id": "t"})
        assert events(second.text)[-1]["type"] == "response.completed"
        turns = await p.settled()
    assert [request["body"]["previous_response_id"] is not None for request in p.seen()] == [False, True]
    assert len({request["connection"] for request in p.seen()}) == 1
    assert [(turn["replica"], turn["via"]) for turn in turns] == [(p.ada.id, None), (p.ada.id, p.bo.id)]


@pytest.mark.parametrize("named", [True, False])
async def test_a_delta_is_carried_by_the_replica_that_made_its_response(named: bool) -> None:
    headers = {"session-id": "s"} if named else {}
    async with pair() as p:
        first = await p.world.post(full(message("one")), **headers)
        response_id = events(first.text)[-1]["response"]["id"]
        # At once: the anchor of an unnamed conversation may not be written yet.
        second = await p.post_to_bo(full(message("two"), previous_response_id=response_id), **headers)
        assert events(second.text)[-1]["type"] == "response.completed"
        turns = await p.settled()
    assert {turn["replica"] for turn in turns} == {p.ada.id}
    assert len({request["connection"] for request in p.seen()}) == 1


async def test_a_document_is_passed_on_with_its_status() -> None:
    async with pair() as p:
        first = await p.world.post(full(message("one")), path="/v1/responses", **{"session-id": "s"})
        response_id = events(first.text)[-1]["response"]["id"]
        delta = full(message("two"), previous_response_id=response_id, stream=False)
        second = await p.post_to_bo(delta, path="/v1/responses", **{"session-id": "s"})
        assert (second.status_code, second.json()["status"]) == (200, "completed")
        unknown = await p.post_to_bo(full(previous_response_id="resp_x"), path="/v1/responses", **{"session-id": "s"})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (400, "previous_response_not_found")


async def test_another_conversation_runs_where_it_landed() -> None:
    async with pair() as p:
        await p.world.post(full(message("one")), **{"thread-id": "t"})
        await p.post_to_bo(full(message("one")), **{"thread-id": "other"})
        await p.post_to_bo(full(message("one")))
        turns = await p.settled()
    assert [turn["replica"] for turn in turns] == [p.ada.id, p.bo.id, p.bo.id]
    assert {turn["via"] for turn in turns} == {None}


async def test_a_chat_completion_continues_no_lane_and_runs_where_it_landed() -> None:
    said = [{"role": "user", "content": "one"}]
    async with pair() as p:
        for post in (p.world.post, p.world.post, p.post_to_bo):
            body = {"model": "gpt-5.5", "prompt_cache_key": "k", "messages": said}
            told = (await post(body, path="/v1/chat/completions")).json()["choices"][0]["message"]
            said = [*said, told, {"role": "user", "content": "more"}]
            turns = await p.settled()
    assert [(turn["upstream"], turn["replica"]) for turn in turns] == [
        ("websocket", p.ada.id),
        ("websocket", p.ada.id),
        ("websocket", p.bo.id),
    ]
    assert [request["body"]["previous_response_id"] for request in p.seen()] == [None] * 3


async def test_a_conversation_of_a_replica_that_died_is_taken_over_with_the_next_epoch() -> None:
    async with pair() as p:
        first = await p.world.post(full(message("one")), **{"thread-id": "t"})
        await p.settled()
        beat = p.world.store.beats[p.ada.id]
        assert beat is not None
        p.world.store.beats[p.ada.id] = beat.replace(year=2020)
        response_id = events(first.text)[-1]["response"]["id"]
        delta = await p.post_to_bo(full(message("two"), previous_response_id=response_id), **{"thread-id": "t"})
        assert (delta.status_code, delta.json()["error"]["code"]) == (400, "previous_response_not_found")
        again = await p.post_to_bo(full(message("one"), *returned(first.text), message("two")), **{"thread-id": "t"})
        assert events(again.text)[-1]["type"] == "response.completed"
        turns = await p.settled()
        (lease,) = p.world.store.leases.values()
        assert (lease.owner, lease.epoch) == (p.bo.id, 2)
    assert [turn["replica"] for turn in turns if turn["outcome"] == "completed"] == [p.ada.id, p.bo.id]


async def test_a_replica_that_was_silent_too_long_lets_go_of_its_lanes_and_says_so() -> None:
    async with pair() as p:
        await p.world.post(full(message("one")), **{"thread-id": "t"})
        await p.settled()
        p.world.store.broken = True
        with capture_logs() as logs:
            await asyncio.sleep(4.5)
        p.world.store.broken = False
        assert [event["sessions"] for event in logs if event["event"] == "fenced"] == [1]
        await p.world.upstream.until(lambda observed: observed.open_sockets == 0)


async def test_a_replica_that_lost_a_conversation_learns_it_with_its_next_turn_and_lets_the_lane_go() -> None:
    async with pair() as p:
        await p.world.post(full(message("one")), **{"thread-id": "t"})
        await p.settled()
        (key,) = p.world.store.leases
        p.world.store.leases[key] = replace(p.world.store.leases[key], owner=p.bo.id, epoch=9)
        with capture_logs() as logs:
            answer = await p.world.post(full(message("two")), **{"thread-id": "t"})
            (_, turn) = await p.settled()
        assert events(answer.text)[-1]["type"] == "response.completed", "what was reserved is served"
        assert not turn["anchored"]
        assert p.ada.membership.tenure(key) is None
        assert [log["why"] for log in logs if log["event"] == "fenced"] == ["another replica owns the conversation"]
        assert not any(lane.alive for lane in p.ada.pool)


async def test_a_stopping_replica_gives_its_conversations_away() -> None:
    async with pair() as p:
        first = await p.world.post(full(message("one")), **{"thread-id": "t"})
        await p.settled()
        await p.ada.drain()
        assert [lease.owner for lease in p.world.store.leases.values()] == [None]
        again = await p.post_to_bo(full(message("one"), *returned(first.text), message("two")), **{"thread-id": "t"})
        assert events(again.text)[-1]["type"] == "response.completed"
        turns = await p.settled()
    assert [turn["replica"] for turn in turns] == [p.ada.id, p.bo.id]


async def test_an_owner_that_takes_no_turn_has_the_full_input_run_elsewhere_without_an_anchor() -> None:
    """It lives and owns the conversation, so whoever carries the turn may not be continued on."""
    async with pair() as p:
        first = await p.world.post(full(message("one")), **{"thread-id": "t"})
        await p.settled()
        p.ada.permits.stop()
        again = await p.post_to_bo(full(message("one"), *returned(first.text), message("two")), **{"thread-id": "t"})
        assert events(again.text)[-1]["type"] == "response.completed"
        turns = await p.settled()
        assert [turn["anchored"] for turn in turns] == [True, False]
        assert "0 anchors" in repr(p.bo.pool)
        response_id = events(again.text)[-1]["response"]["id"]
        delta = await p.post_to_bo(full(message("x"), previous_response_id=response_id), **{"thread-id": "t"})
        assert delta.json()["error"]["code"] == "previous_response_not_found"


async def test_an_owner_that_cannot_be_reached_costs_no_turn() -> None:
    async with pair() as p:
        await p.world.post(full(message("one")), **{"thread-id": "t"})
        await p.settled()
        p.world.store.urls[p.ada.id] = "http://127.0.0.1:9"
        await p.bo.membership.tick()
        again = await p.post_to_bo(full(message("one")), **{"thread-id": "t"})
        assert events(again.text)[-1]["type"] == "response.completed"


async def test_what_became_of_a_turn_whose_owner_broke_off_before_its_status_is_not_tried_again() -> None:
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(deaf, "127.0.0.1", 0)
    async with server, pair() as p:
        await p.world.post(full(message("one")), **{"thread-id": "t"})
        await p.settled()
        p.world.store.urls[p.ada.id] = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await p.bo.membership.tick()
        answer = await p.post_to_bo(full(message("one")), **{"thread-id": "t"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "replica_lost")
        assert answer.headers["retry-after"] == "2"
    assert len(p.seen()) == 1


async def test_a_stream_whose_owner_is_lost_ends_with_one_failure() -> None:
    async with pair(faults=("slow:0.05",)) as p:
        await p.world.post(full(message("one")), **{"thread-id": "t"})
        await p.settled()
        request = p.world.client.stream(
            "POST", f"http://127.0.0.1:{p.port}{CODEX}", json=full(message("two")), headers={"thread-id": "t"}
        )
        async with request as answer:
            chunks = answer.aiter_text()
            text = await anext(chunks)  # the answer has begun, so that its end has to be told in it
            for forward in tuple(p.bo.gate.forwards):
                forward.abort(lost())
            text += "".join([chunk async for chunk in chunks])
        assert [event["type"] for event in events(text)].count("response.failed") == 1
        assert events(text)[-1]["response"]["error"]["code"] == "replica_lost"
        await p.world.upstream.until(lambda observed: observed.running == 0)
        assert [turn["outcome"] for turn in await p.settled()] == ["completed", "client_gone"]


async def test_replicas_share_the_streams_of_an_account_and_borrow_what_others_do_not_use() -> None:
    """Of eight, half are Bo's own, and of Ada's half it may have three: a quarter of a part is kept ready."""
    async with pair(faults=("slow:0.2",)) as p:
        posted = [asyncio.ensure_future(p.post_to_bo(full(message("at Bo")))) for _ in range(9)]
        await p.world.upstream.until(lambda observed: observed.running == 7)
        for runtime in (p.bo, p.ada):
            await runtime.membership.tick()
        posted += [asyncio.ensure_future(p.world.post(full(message("at Ada")))) for _ in range(2)]
        await p.world.upstream.until(lambda observed: observed.running == 8)
        answers = await asyncio.gather(*posted)
        running = [(r["started_at"], 1) for r in p.seen()] + [(r["ended_at"], -1) for r in p.seen()]
    assert {answer.status_code for answer in answers} == {200}
    assert max(accumulate(change for _, change in sorted(running))) == 8


def limit(p: Pair, **limits: Any) -> None:
    """Give the client's key limits that both replicas know at once."""
    (key,) = p.world.store.keys
    p.world.store.keys = [replace(key, limits=KeyLimits(**limits))]
    for runtime in (p.ada, p.bo):
        runtime.keys.replace(p.world.store.keys)
        runtime.meter.watch(p.world.store.keys)


async def test_a_forwarded_turn_is_one_request_of_its_key_while_it_runs_and_afterwards() -> None:
    async with pair(faults=("slow:0.1",)) as p:
        limit(p, windows=(Limit(Unit.REQUESTS, Span.DAY, 3),))
        await p.world.post(full(message("one")), **{"thread-id": "t"})
        await p.settled()
        forwarded = asyncio.ensure_future(p.post_to_bo(full(message("two")), **{"thread-id": "t"}))
        await p.world.upstream.until(lambda observed: observed.running == 1)
        # Its turn is written together with all that Bo has counted, so Ada knows of that too.
        third = await p.post_to_bo(full(message("another")))
        assert (third.status_code, (await forwarded).status_code) == (200, 200)
        fourth = [await p.post_to_bo(full(message("more"))), await p.world.post(full(message("more")))]
        turns = await p.settled()
    assert [turn["via"] for turn in turns] == [None, p.bo.id, None]
    assert [answer.json()["error"]["code"] for answer in fourth] == ["key_requests_per_day"] * 2


async def test_a_turn_that_its_owner_does_not_take_counts_where_it_runs() -> None:
    async with pair() as p:
        await p.world.post(full(message("one")), **{"thread-id": "t"})
        await p.settled()
        limit(p, windows=(Limit(Unit.REQUESTS, Span.DAY, 2),))
        p.ada.permits.stop()
        assert (await p.post_to_bo(full(message("two")), **{"thread-id": "t"})).status_code == 200
        third = await p.post_to_bo(full(message("three")), **{"thread-id": "t"})
    assert third.json()["error"]["code"] == "key_requests_per_day"


async def test_a_forwarded_turn_is_one_of_its_keys_turns_at_once() -> None:
    async with pair(faults=("slow:0.1",)) as p:
        limit(p, turns=2)
        await p.world.post(full(message("one")), **{"thread-id": "t"})
        await p.settled()
        forwarded = asyncio.ensure_future(p.post_to_bo(full(message("two")), **{"thread-id": "t"}))
        await p.world.upstream.until(lambda observed: observed.running == 1)
        # Both replicas read the ledger, where the turn stands, when they write down one of their own.
        for runtime in (p.ada, p.bo):
            await runtime.gate.look_up_usage(p.world.store.keys[0])
        assert [runtime.permits.held_by(1) for runtime in (p.ada, p.bo)] == [1, 1]
        await forwarded
        await p.settled()
        for runtime in (p.ada, p.bo):
            await runtime.gate.look_up_usage(p.world.store.keys[0])
        assert [runtime.permits.held_by(1) for runtime in (p.ada, p.bo)] == [0, 0]


async def test_a_client_that_leaves_its_replica_ends_the_turn_at_the_other() -> None:
    async with pair(faults=("slow:0.2",)) as p:
        await p.world.post(full(message("one")), **{"thread-id": "t"})
        await p.settled()
        posting = asyncio.ensure_future(p.post_to_bo(full(message("two")), **{"thread-id": "t"}))
        await p.world.upstream.until(lambda observed: observed.running == 1)
        posting.cancel()
        await p.world.upstream.until(lambda observed: observed.running == 0)
        assert [turn["outcome"] for turn in await p.settled()] == ["completed", "client_gone"]
        assert p.bo.permits.held == 0


async def test_a_turn_is_never_forwarded_twice() -> None:
    """Both believe that the other owns the conversation: the second to get the turn carries it."""
    async with pair() as p:
        await p.world.post(full(message("one")), **{"thread-id": "t"})
        await p.settled()
        (key,) = p.world.store.leases
        await p.ada.membership.leave_idle()
        p.world.store.leases[key] = replace(p.world.store.leases[key], owner=p.bo.id, epoch=9)
        answer = await p.world.post(full(message("two")), **{"thread-id": "t"})
        assert events(answer.text)[-1]["type"] == "response.completed"
        turns = await p.settled()
    assert [(turn["replica"], turn["via"]) for turn in turns][-1] == (p.bo.id, p.ada.id)


async def test_a_stranger_gets_nothing_of_the_replicas_own_path() -> None:
    async with pair() as p:
        answer = await p.world.client.post(f"{p.world.url}/internal/turns", json=full(message("one")))
        assert answer.status_code == 421
        forged = {"x-pointsman-target": str(p.ada.id), "x-pointsman-client": "1", "x-pointsman-signature": "0" * 64}
        answer = await p.world.client.post(f"{p.world.url}/internal/turns", json={}, headers=forged)
        assert (answer.status_code, answer.json()["error"]["code"]) == (421, "not_taken")
    assert p.seen() == []


async def test_a_websocket_turn_stays_where_its_socket_is() -> None:
    async with pair() as p:
        await p.world.post(full(message("one")), **{"session-id": "s"})
        await p.settled()
        async with RawSocket(p) as socket:
            assert await socket.turn(full(message("two"))) == "response.completed"
        turns = await p.settled()
    assert [turn["replica"] for turn in turns] == [p.ada.id, p.bo.id]


class RawSocket:
    """A client's WebSocket to Bo, in the conversation that Ada owns."""

    def __init__(self, p: Pair) -> None:
        self._pair = p

    async def __aenter__(self) -> RawSocket:
        self._socket = await websockets.connect(
            f"ws://127.0.0.1:{self._pair.port}{CODEX}",
            additional_headers={"authorization": f"Bearer {self._pair.world.key.text}", "session-id": "s"},
            proxy=None,
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._socket.close()

    async def turn(self, body: dict[str, Any]) -> str:
        await self._socket.send(json.dumps({"type": "response.create", **body}))
        while (event := json.loads(await self._socket.recv()))["type"] not in ("response.completed", "error"):
            pass
        return event["type"]


async def test_turn_state_is_asked_for_before_it_is_shown_to_an_account() -> None:
    async with pair("ada", "bo", transport="http") as p:
        favourite = replace(p.world.store.accounts[1], priority=1)
        issued: dict[str, str] = {}
        for state in (State.PAUSED, State.ACTIVE):
            p.world.store.accounts[1] = replace(favourite, state=state)
            await asyncio.gather(*(runtime.registry.refresh() for runtime in (p.ada, p.bo)))
            post = p.world.post if state is State.PAUSED else p.post_to_bo
            answer = await post(full(message("one")), **issued)
            issued = issued or {"x-codex-turn-state": answer.headers["x-codex-turn-state"]}
            turns = await p.settled()
        shown = [request["headers"].get("x-codex-turn-state") for request in p.seen()]
    assert [turn["account_id"] for turn in turns] == [2, 2]
    assert shown == [None, issued["x-codex-turn-state"]]


async def test_turn_state_whose_issuer_nobody_knows_yet_is_shown_to_no_account() -> None:
    """It is known to other replicas once the turn that brought it is written down, which may be after its next use."""
    async with pair(transport="http") as p:
        for post in (p.world.post, p.post_to_bo):
            await post(full(message("one")), **{"thread-id": "t", "x-codex-turn-state": "issued elsewhere"})
        assert all("x-codex-turn-state" not in request["headers"] for request in p.seen())
