"""A conversation migrates in a real gateway, and stays where it went after a restart."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.support.processes import GatewayProcess, Installation, SimulatorProcess
from tests.support.records import HELLO

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

Json = dict[str, Any]
THINKING = "gpt-5.5;reasoning=true"
RESET = 3600


def message(text: str) -> Json:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def post(gateway: GatewayProcess, history: list[Json]) -> httpx.Response:
    body = {**HELLO, "model": THINKING, "input": history}
    headers = {**gateway.headers, "thread-id": "t"}
    with httpx.Client(trust_env=False, timeout=30) as client:
        return client.post(f"{gateway.url}/backend-api/codex/responses", json=body, headers=headers)


def answer(gateway: GatewayProcess, history: list[Json]) -> list[Json]:
    """The history with the answer to it; it must be complete."""
    told = post(gateway, history)
    assert told.status_code == 200, told.text
    assert "response.completed" in told.text
    lines = [line[6:] for line in told.text.splitlines() if line.startswith("data: ")]
    events = [httpx.Response(200, content=line.encode()).json() for line in lines]
    return [*history, *(event["item"] for event in events if event["type"] == "response.output_item.done")]


@pytest.fixture
def installation(new_installation: Callable[[], Installation], upstream: SimulatorProcess) -> Installation:
    """With a second account beside ada."""
    made = new_installation()
    made.add_account("bo", upstream.base_url())
    return made


def serving(installation: Installation, migrate: str) -> Any:
    return installation.serve(GATEWAY_MIGRATE_CONVERSATIONS=migrate)


def test_a_conversation_whose_account_is_limited_goes_on_elsewhere_without_its_reasoning(
    installation: Installation, upstream: SimulatorProcess
) -> None:
    for gateway in serving(installation, "off"):
        gateway.wait_ready()
        history = answer(gateway, [message("one")])
        first = upstream.observed().requests[-1].account
        upstream.add_fault(f"usage_limit:{RESET}@{first}")
        told = post(gateway, [*history, message("two")])
        error = told.json()["error"]
        assert (told.status_code, error["type"]) == (429, "usage_limit_reached")
        assert error["resets_at"] == pytest.approx(time.time() + RESET, abs=30)
        assert "GATEWAY_MIGRATE_CONVERSATIONS is off" in error["message"]

    for gateway in serving(installation, "on"):
        gateway.wait_ready()
        history = answer(gateway, [*history, message("two")])
        second = upstream.observed().requests[-1]
        assert second.account != first
        assert second.body is not None
        assert "reasoning" not in second.body.input_types
        assert "conversation_left" in gateway.output()
        deadline = time.monotonic() + 5
        while not (left := [t.get("left", "") for row in gateway.ledger.turns() for t in row.tries if "left" in t]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert left[-1].endswith("by migration, reasoning dropped (1 items)")

    # The client goes on sending what was dropped; a new process knows of it from the database alone.
    for gateway in serving(installation, "off"):
        gateway.wait_ready()
        upstream.clear_faults()
        answer(gateway, [*history, message("three")])
        third = upstream.observed().requests[-1]
        assert third.account == second.account
        assert third.body is not None
        assert third.body.input_types["reasoning"] == 1
