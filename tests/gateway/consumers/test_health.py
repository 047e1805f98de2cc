"""Alive is not ready, and what is not ready says why."""

from __future__ import annotations

import json

from gateway.consumers.health import health_of, readiness_of
from tests.gateway.consumers.asgi import edge


async def test_a_process_that_answers_is_alive():
    document = await health_of()({})
    assert (document.status, document.body) == (200, b'{"alive":true}')


async def test_a_gateway_that_can_take_turns_is_ready():
    async with edge() as made:
        document = await readiness_of(lambda: made.runtime.gate)({})
    assert document.status == 200
    told = json.loads(document.body)
    assert told["ready"] is True
    assert set(told["checks"].values()) == {"ok"}


async def test_a_gateway_that_cannot_says_which_condition_is_not_met():
    async with edge() as made:
        made.store.broken = True
        document = await readiness_of(lambda: made.runtime.gate)({})
        made.store.broken = False
    assert document.status == 503
    told = json.loads(document.body)
    assert told["ready"] is False
    assert told["checks"]["database"] != "ok"
    assert told["checks"]["accounts"] == "ok"


async def test_a_gateway_without_a_usable_account_is_not_ready():
    async with edge() as made:
        made.runtime.registry.mark_needs_login(1, "refused")
        document = await readiness_of(lambda: made.runtime.gate)({})
    assert json.loads(document.body)["checks"]["accounts"] == "no account is usable"
