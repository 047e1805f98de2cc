"""Kinds of faults about blame, quota and tokens that operators of such gateways met; each must not happen here."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from accounts.circuit import CircuitState
from accounts.credentials import CodexCredentials
from accounts.quota import Quota, Window
from accounts.states import State
from accounts.tokens import Refreshed, Result
from gateway.conf import Tunables
from gateway.metering.limits import KeyLimits, Limit, Span, Unit
from tests.support.inprocess import World, world
from tests.support.records import HELLO

TWO = ("ada", "bo")
TRANSPORTS = ("http", "websocket")


def circuit(w: World, number: int) -> CircuitState:
    return w.runtime.engine.health.circuits.get(number).state


def state(w: World, number: int) -> State:
    account = w.runtime.registry.get(number)
    assert account is not None
    return account.state


async def sign_in(w: World, number: int = 1) -> None:
    """The account is a sign-in, whose token can be renewed."""
    credentials = CodexCredentials("sim-ada", "refresh")
    w.store.accounts[number] = dataclasses.replace(w.store.accounts[number], credentials=credentials, revision=2)
    await w.runtime.registry.refresh()


class TestBlame:
    @pytest.mark.parametrize("transport", TRANSPORTS)
    async def test_clients_that_leave_in_mid_stream_are_no_failures_of_the_account(self, transport: str) -> None:
        body = {**HELLO, "model": "gpt-5.5;events=200;interval=0.02", "stream": True}
        async with world(transport=transport) as w:
            for _ in range(7):
                url = f"{w.url}/backend-api/codex/responses"
                async with w.client.stream("POST", url, json=body) as answer:
                    await anext(aiter(answer.aiter_bytes()))
            assert {turn["outcome"] for turn in await w.settled()} == {"client_gone"}
            assert (circuit(w, 1), state(w, 1)) == (CircuitState.CLOSED, State.ACTIVE)

    @pytest.mark.parametrize("status", [400, 404, 422])
    async def test_a_request_that_is_wrong_by_itself_is_not_charged_to_the_account(self, status: int) -> None:
        async with world(*TWO, transport="http", faults=(f"http:{status}@ada",)) as w:
            for _ in range(7):
                assert (await w.post(HELLO)).status_code == status
            assert (circuit(w, 1), state(w, 1)) == (CircuitState.CLOSED, State.ACTIVE)

    async def test_a_few_drops_without_a_frame_do_not_lock_out_the_conversations_of_an_account(self) -> None:
        bound = {**HELLO, "conversation": "conv_1"}
        async with world(transport="websocket", faults=("reset_before_created#3",)) as w:
            for _ in range(3):
                assert (await w.post(bound)).status_code == 503
            assert (await w.post(bound)).status_code == 200

    @pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter"])
    @pytest.mark.parametrize("transport", TRANSPORTS)
    async def test_a_response_that_stops_early_is_a_result_with_its_usage_and_no_failure(
        self, transport: str, reason: str
    ) -> None:
        async with world(*TWO, transport=transport, faults=(f"incomplete:{reason}@ada",)) as w:
            for _ in range(7):
                answer = await w.post(HELLO)
                assert (answer.status_code, "response.incomplete" in answer.text) == (200, True)
            turns = await w.settled()
            assert {(turn["outcome"], turn["output_tokens"] > 0) for turn in turns} == {("incomplete", True)}
            assert (circuit(w, 1), state(w, 1)) == (CircuitState.CLOSED, State.ACTIVE)

    @pytest.mark.parametrize("transport", TRANSPORTS)
    async def test_for_a_client_that_has_left_no_other_account_is_asked(self, transport: str) -> None:
        async with world(*TWO, transport=transport, faults=("silent",)) as w:
            asking = asyncio.ensure_future(w.post(HELLO))
            while not w.upstream.observed.requests:
                await asyncio.sleep(0.01)
            asking.cancel()
            (turn,) = await w.settled()
            assert turn["outcome"] == "client_gone"
            assert [record.account for record in w.upstream.observed.requests] == ["ada"]
            assert (circuit(w, 1), state(w, 1)) == (CircuitState.CLOSED, State.ACTIVE)

    async def test_upstream_wide_trouble_locks_nobody_out(self) -> None:
        async with world(*TWO, transport="http", faults=("http:500",)) as w:
            for _ in range(14):
                await w.post(HELLO)
            assert {circuit(w, 1), circuit(w, 2)} == {CircuitState.CLOSED}
            w.upstream.faults.clear()
            assert (await w.post(HELLO)).status_code == 200


class TestQuota:
    @pytest.mark.parametrize(("transport", "fault"), [("http", "http:429"), ("websocket", "handshake:429")])
    async def test_a_burst_limit_without_a_code_moves_the_turn_and_rests_the_account_for_moments(
        self, transport: str, fault: str
    ) -> None:
        async with world(*TWO, transport=transport, faults=(f"{fault}@ada",)) as w:
            assert "Hello from bo" in (await w.post(HELLO)).text
            ada = w.runtime.registry.get(1)
            assert ada is not None
            assert ada.state is State.LIMITED
            assert (ada.state_until or 0) - w.runtime._clock.wall() <= 10
            assert circuit(w, 1) is CircuitState.CLOSED

    async def test_a_burst_limit_of_the_only_account_is_told_with_the_time_to_wait(self) -> None:
        async with world(transport="http", faults=("http:429",)) as w:
            answer = await w.post(HELLO)
            assert answer.status_code in (429, 503)
            assert 1 <= int(answer.headers["retry-after"]) <= 10
            assert answer.json()["error"]["type"] != "usage_limit_reached"

    async def test_a_limit_that_is_hours_away_is_told_once_and_nobody_asks_again(self) -> None:
        async with world(*TWO, transport="http", faults=("usage_limit:7200",)) as w:
            for _ in range(5):
                answer = await w.post(HELLO)
                assert (answer.status_code, answer.json()["error"]["type"]) == (429, "usage_limit_reached")
            await w.settled()
            assert len(w.upstream.observed.requests) == 2

    async def test_a_full_window_alone_blocks_nobody(self) -> None:
        async with world(transport="http") as w:
            full = Quota({"codex/primary": Window(w.runtime._clock.wall(), 100.0, 300)})
            w.runtime.engine.health.quotas.observe(1, full)
            assert (await w.post(HELLO)).status_code == 200

    async def test_a_local_limit_is_called_what_it_is_and_says_what_became_of_each_account(self) -> None:
        slow = {**HELLO, "model": "gpt-5.5;events=50;interval=0.05"}
        async with world(transport="http", tunables=Tunables(admission_wait=0.2), streams=1) as w:
            running = asyncio.ensure_future(w.post(slow))
            while not w.upstream.observed.requests:
                await asyncio.sleep(0.01)
            answer = await w.post(HELLO)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "account_streams_busy")
            assert "1 account: 1 full" in answer.json()["error"]["message"]
            await running

    async def test_a_request_for_which_there_was_no_place_is_not_counted_against_its_key(self) -> None:
        tunables = Tunables(admission_turns=1, admission_wait=0.05)
        limits = KeyLimits((Limit(Unit.REQUESTS, Span.DAY, 2),))
        slow = {**HELLO, "model": "gpt-5.5;events=50;interval=0.02"}
        async with world(transport="http", tunables=tunables) as w:
            key = dataclasses.replace(w.store.keys[0], limits=limits)
            w.store.keys[0] = key
            w.runtime.keys.replace([key])
            w.runtime.meter.watch([key])
            running = asyncio.ensure_future(w.post(slow))
            while not w.upstream.observed.requests:
                await asyncio.sleep(0.01)
            for _ in range(3):
                assert (await w.post(HELLO)).status_code == 503
            await running
            await w.settled()
            assert (await w.post(HELLO)).status_code == 200
            assert (await w.post(HELLO)).status_code == 429


class TestTokens:
    @pytest.mark.parametrize("transport", TRANSPORTS)
    async def test_an_account_with_a_dead_token_leaves_the_pool_and_poisons_no_later_turn(self, transport: str) -> None:
        async with world(*TWO, transport=transport, faults=("unauthorized@ada",)) as w:
            await sign_in(w)
            asked = []

            async def dead(account: int, refused: str | None = None) -> Refreshed:
                asked.append(refused)
                return Refreshed(Result.NEEDS_LOGIN)

            w.refresher.answer = dead
            for _ in range(5):
                assert "Hello from bo" in (await w.post(HELLO)).text
            assert state(w, 1) is State.NEEDS_LOGIN
            assert len(asked) == 1

    async def test_a_401_never_reaches_a_client_who_would_take_it_for_its_own(self) -> None:
        async with world(transport="http", faults=("unauthorized",)) as w:
            answer = await w.post(HELLO)
            assert answer.status_code == 503

    async def test_turns_that_meet_one_refused_token_at_once_all_go_on_with_the_new_one(self) -> None:
        async with world(transport="http") as w:
            old = CodexCredentials("old-token", "refresh")
            w.store.accounts[1] = dataclasses.replace(w.store.accounts[1], credentials=old, revision=2)
            await w.runtime.registry.refresh()

            async def renew(account: int, refused: str | None = None) -> Refreshed:
                await asyncio.sleep(0.05)
                new = CodexCredentials("sim-ada", "refresh-2")
                w.store.accounts[1] = dataclasses.replace(w.store.accounts[1], credentials=new, revision=3)
                return Refreshed(Result.REFRESHED, new)

            w.refresher.answer = renew
            answers = await asyncio.gather(*(w.post(HELLO) for _ in range(6)))
            assert {answer.status_code for answer in answers} == {200}
            assert state(w, 1) is State.ACTIVE
