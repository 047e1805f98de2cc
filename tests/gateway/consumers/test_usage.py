"""What a key has used and may use, and what it is told when that is all."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from accounts.quota import Plan, Quota, Window
from accounts.states import State
from gateway.keys import KeySnapshot
from gateway.metering.limits import NO_LIMITS, KeyLimits, Limit, Span, Unit, window_of
from gateway.metering.prices import Price
from gateway.metering.usage import Counts
from gateway.turns.names import Alias
from tests.support.inprocess import World, world

BODY = {"model": "gpt-5.5", "stream": True, "input": "hi"}
MINUTE = KeyLimits((Limit(Unit.REQUESTS, Span.MINUTE, 1),))
DAY = KeyLimits((Limit(Unit.REQUESTS, Span.DAY, 1),))
TOKENS = KeyLimits((Limit(Unit.TOKENS, Span.DAY, 1),))


@asynccontextmanager
async def limited(limits: KeyLimits = NO_LIMITS, *names: str, **changes: Any) -> AsyncIterator[World]:
    """A world whose key has `limits` and other `changes`."""
    faults = changes.pop("faults", ())
    async with world(*names, faults=faults, transport=changes.pop("transport", "http")) as w:
        key: KeySnapshot = replace(w.store.keys[0], limits=limits, **changes)
        w.store.keys[0] = key
        w.runtime.keys.replace([key])
        w.runtime.meter.watch([key])
        yield w


async def test_a_limit_that_is_soon_over_is_told_with_the_seconds() -> None:
    async with limited(MINUTE) as w:
        assert (await w.post(BODY)).status_code == 200
        refused = await w.post(BODY)
        assert len(await w.settled()) == 1
    error = refused.json()["error"]
    assert (refused.status_code, error["type"], error["code"]) == (429, "rate_limit_error", "key_requests_per_minute")
    assert 1 <= int(refused.headers["retry-after"]) <= 60


@pytest.mark.parametrize("limits", [DAY, TOKENS])
async def test_a_limit_that_lasts_is_told_as_a_usage_limit_with_its_end(limits: KeyLimits) -> None:
    async with limited(limits) as w:
        assert (await w.post(BODY)).status_code == 200
        refused = await w.post(BODY)
    error = refused.json()["error"]
    assert (refused.status_code, error["type"], error["code"]) == (429, "usage_limit_reached", limits.windows[0].code)
    assert error["resets_at"] % 86_400 == 0
    assert "retry-after" not in refused.headers


@pytest.mark.parametrize(("limits", "used"), [(DAY, Counts(1)), (TOKENS, Counts(0, 1))])
async def test_what_others_have_counted_by_the_time_of_the_commit_is_not_overrun(
    limits: KeyLimits, used: Counts
) -> None:
    async with limited(limits) as w:
        # Nobody has told this process of it yet; it reads others once a second.
        w.store.usage[uuid.uuid4(), (1, window_of(Span.DAY, w.runtime._clock.wall()))] = used
        refused = await w.post(BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, limits.windows[0].code)
        assert not w.upstream.observed.requests


async def test_a_websocket_is_told_in_a_frame_and_stays_open() -> None:
    async with limited(DAY, transport="websocket") as w:
        socket = await w.websocket()
        for _ in range(2):
            await socket.send(json.dumps({**BODY, "type": "response.create"}))
            while (event := json.loads(await socket.recv()))["type"] not in ("response.completed", "error"):
                pass
        assert (event["status"], event["error"]["type"]) == (429, "usage_limit_reached")


async def test_what_was_refused_before_anything_ran_counts_for_nothing() -> None:
    async with limited(MINUTE) as w:
        w.upstream.backend.accounts["sim-ada"].limited_until = 4e9
        assert (await w.post(BODY)).status_code == 429
        w.store.accounts[1] = replace(w.store.accounts[1], state=State.ACTIVE, state_until=None, revision=9)
        w.upstream.backend.accounts["sim-ada"].limited_until = None
        await w.runtime.registry.flush()
        w.store.accounts[1] = replace(w.store.accounts[1], state=State.ACTIVE, state_until=None, revision=99)
        await w.runtime.registry.refresh()
        assert (await w.post(BODY)).status_code == 200


async def test_turns_beyond_those_at_once_wait_in_line() -> None:
    async with limited(KeyLimits(turns=1), faults=("slow:0.01",)) as w:
        answers = await asyncio.gather(*(w.post(BODY) for _ in range(3)))
        assert {answer.status_code for answer in answers} == {200}
        assert max(turn["admitted_ms"] for turn in await w.settled()) > 0


async def test_a_client_that_leaves_early_has_used_what_is_estimated() -> None:
    async with limited(TOKENS, faults=("slow:0.2",)) as w:
        async with w.client.stream("POST", w.url + "/v1/responses", json=BODY) as answer:
            await anext(answer.aiter_bytes())
        (turn,) = await w.settled()
        assert turn["outcome"] == "client_gone"
        assert (turn["output_tokens"], turn["cost_micros"]) == (None, None)
        assert (await w.post(BODY)).status_code == 429


async def test_the_holder_sees_limits_use_and_cost() -> None:
    limits = KeyLimits((Limit(Unit.REQUESTS, Span.DAY, 5), Limit(Unit.TOKENS, Span.MONTH, 10**6)), turns=3)
    async with limited(limits, models=("gpt-*",)) as w:
        w.runtime.prices.replace([Price("gpt-5.5", date(2020, 1, 1), Decimal(2), Decimal(10))])
        for model in ("gpt-5.5", "gpt-6-sol"):
            await w.post({**BODY, "model": model})
        priced, unpriced = await w.settled()
        usage = (await w.client.get(w.url + "/v1/usage")).json()
    assert priced["cost_micros"] == 2 * priced["input_tokens"] + 10 * priced["output_tokens"] > 0
    assert unpriced["cost_micros"] is None
    windows = {each["window"]: each for each in usage["windows"]}
    assert windows["day"]["requests"] == {"used": 2, "limit": 5}
    tokens = sum(turn["input_tokens"] + turn["output_tokens"] for turn in (priced, unpriced))
    assert windows["month"]["tokens"] == {"used": tokens, "limit": 10**6}
    assert windows["day"]["cost"] == {"usd": f"{priced['cost_micros'] / 1e6:.6f}", "turns_without_a_price": 1}
    assert (usage["key"], usage["turns"], usage["models"]) == ("tests", {"running": 0, "limit": 3}, ["gpt-*"])


async def test_what_has_no_price_has_cost_an_unknown_sum_and_not_nothing() -> None:
    async with limited(NO_LIMITS) as w:
        costs = [(await w.client.get(w.url + "/v1/usage")).json()["windows"][0]["cost"]]
        await w.post(BODY)
        await w.settled()
        costs.append((await w.client.get(w.url + "/v1/usage")).json()["windows"][-1]["cost"])
    assert costs == [{"usd": "0.000000", "turns_without_a_price": 0}, {"usd": None, "turns_without_a_price": 1}]


async def test_an_alias_reaches_its_model_and_the_ledger_knows_both_names() -> None:
    async with limited() as w:
        w.runtime.names.replace([Alias("gpt-5.5-high", "gpt-5.5", "high")])
        answer = await w.post({**BODY, "model": "gpt-5.5-high"})
        (turn,) = await w.settled()
    assert (turn["model"], turn["asked_model"]) == ("gpt-5.5", "gpt-5.5-high")
    assert answer.headers["openai-model"] == "gpt-5.5-high"


async def test_an_alias_is_no_other_model_for_a_client_on_a_websocket() -> None:
    async with limited(transport="websocket") as w:
        w.runtime.names.replace([Alias("gpt-5.5-high", "gpt-5.5", "high")])
        socket = await w.websocket()
        await socket.send(json.dumps({**BODY, "type": "response.create", "model": "gpt-5.5-high"}))
        told = []
        while (event := json.loads(await socket.recv()))["type"] != "response.completed":
            told += [event["headers"]["openai-model"]] if "openai-model" in event.get("headers", {}) else []
    assert told == ["gpt-5.5-high"]


async def test_a_key_reaches_its_accounts_alone() -> None:
    async with limited(NO_LIMITS, "ada", "bo", accounts=frozenset({2})) as w:
        for _ in range(4):
            assert (await w.post(BODY)).status_code == 200
    assert {record.account for record in w.upstream.observed.requests} == {"bo"}


async def test_a_model_that_the_key_is_not_open_for_is_refused_before_anything() -> None:
    async with limited(models=("gpt-6*",)) as w:
        refused = await w.post(BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "model_not_allowed")
        assert not w.upstream.observed.requests


@pytest.mark.parametrize("path", ["/backend-api/wham/usage", "/api/codex/usage"])
async def test_codex_sees_the_windows_of_the_pool_as_one(path: str) -> None:
    async with limited(NO_LIMITS, "ada", "bo", "cy", accounts=frozenset({1, 2})) as w:
        now = w.runtime.gate.clock.wall()
        for account, used in ((1, 20.0), (2, 60.0), (3, 100.0)):
            windows = {"codex/primary": Window(now, used, 300, now + 100 * account)}
            w.runtime.engine.health.quotas.load(account, Quota(windows, plan=Plan(now, "pro")))
        usage = (await w.client.get(w.url + path)).json()
    assert usage["plan_type"] == "pro"
    limit = usage["rate_limit"]
    assert (limit["allowed"], limit["limit_reached"], limit["secondary_window"]) == (True, False, None)
    assert (limit["primary_window"]["used_percent"], limit["primary_window"]["limit_window_seconds"]) == (40, 18_000)
    assert 98 <= limit["primary_window"]["reset_after_seconds"] <= 100


@pytest.mark.parametrize("path", ["/backend-api/wham/accounts/check", "/api/codex/accounts/check"])
async def test_a_client_that_is_signed_in_is_told_that_its_own_account_may_be_used(path: str) -> None:
    async with limited() as w:
        headers = {"chatgpt-account-id": "acc-1"}
        told = (await w.client.get(w.url + path, headers=headers)).json()
        without = await w.client.get(w.url + path)
    assert (told["accounts"][0]["id"], told["default_account_id"]) == ("acc-1", "acc-1")
    assert without.status_code == 400
