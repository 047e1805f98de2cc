"""Ten times more clients than places: documented refusals, an answering process, and full service right afterwards."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from gateway.conf import MIB, Tunables
from tests.support.inprocess import world
from tests.support.processes import Installation, gateway, simulator
from tests.support.records import HELLO

PLACES = 4
CLIENTS = 10 * PLACES
WAIT = 0.5
# The limits a client may be told about here, as the documentation names them.
DOCUMENTED = {"gateway_full", "account_streams_busy"}


@dataclass
class Crowd:
    """Clients that ask again and again without heeding Retry-After, and what they were told."""

    url: str
    headers: dict[str, str]
    told: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    health: list[float] = field(default_factory=list)

    async def press(self, seconds: float) -> None:
        """Overload the gateway for so long, and wait until everybody has an answer."""
        limits = httpx.Limits(max_connections=2 * CLIENTS)
        async with httpx.AsyncClient(headers=self.headers, limits=limits, trust_env=False, timeout=30) as client:
            deadline = time.monotonic() + seconds
            crowd = [self._ask_until(client, deadline) for _ in range(CLIENTS)]
            await asyncio.gather(*crowd, self._look_until(client, deadline))

    async def _ask_until(self, client: httpx.AsyncClient, deadline: float) -> None:
        while time.monotonic() < deadline:
            answer = await client.post(f"{self.url}/backend-api/codex/responses", json=dict(HELLO))
            self._note(answer)
            await asyncio.sleep(0.02)

    def _note(self, answer: httpx.Response) -> None:
        if answer.status_code == 200:
            self.told["completed" if "response.completed" in answer.text else "broken"] += 1
            return
        code = answer.json()["error"]["code"]
        self.told[code] += 1
        after = answer.headers.get("retry-after", "")
        if answer.status_code != 503 or code not in DOCUMENTED or not (after.isdigit() and 1 <= int(after) <= 60):
            self.complaints.append(f"{answer.status_code} {code} retry-after {after!r}")

    async def _look_until(self, client: httpx.AsyncClient, deadline: float) -> None:
        while time.monotonic() < deadline:
            began = time.monotonic()
            assert (await client.get(f"{self.url}/healthz")).status_code == 200
            self.health.append(time.monotonic() - began)
            await asyncio.sleep(0.1)

    def assert_only_documented(self) -> None:
        assert not self.complaints
        assert self.told["completed"] > 0
        assert self.told["gateway_full"] > 0, "this was no overload"
        assert not self.told["broken"]
        assert self.health, "the process did not say that it lives"

    def assert_health_was_prompt(self) -> None:
        """Nineteen of twenty answers about health came within a second; the machine may stall once by itself."""
        assert sorted(self.health)[len(self.health) * 19 // 20] < 1.0


async def assert_full_service(url: str, headers: dict[str, str]) -> None:
    """As many turns as there are places are carried at once, within two seconds."""
    began = time.monotonic()
    async with httpx.AsyncClient(headers=headers, trust_env=False, timeout=5) as client:
        path = f"{url}/backend-api/codex/responses"
        answers = await asyncio.gather(*(client.post(path, json=dict(HELLO)) for _ in range(PLACES)))
    assert ["response.completed" in answer.text for answer in answers] == [True] * PLACES
    assert time.monotonic() - began < 2.0


async def test_overload_is_refused_in_words_that_clients_understand() -> None:
    tunables = Tunables(admission_turns=PLACES, admission_wait=WAIT)
    async with world(tunables=tunables, faults=("slow:0.02",), transport="http") as w:
        most = 0

        def note_most() -> None:
            nonlocal most
            most = max(most, w.upstream.observed.running)

        w.upstream.observed.subscribe(note_most)
        headers = {"authorization": f"Bearer {w.key.text}"}
        crowd = Crowd(w.url, headers)
        await crowd.press(2.0)
        crowd.assert_only_documented()
        assert most == PLACES, "the places were not used, or more than there are"
        await assert_full_service(w.url, headers)
        ledger = await w.settled()
        assert w.runtime.permits.held == w.runtime.permits.waiting == 0
    assert sum(turn["outcome"] == "completed" for turn in ledger) == crowd.told["completed"] + PLACES


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_minute_of_overload_costs_no_memory(tmp_path: Path) -> None:
    installation = await asyncio.to_thread(Installation.create, tmp_path)
    limits = {"GATEWAY_ADMISSION_TURNS": str(PLACES), "GATEWAY_ADMISSION_WAIT": str(WAIT)}
    with simulator(tmp_path, "--interval", "0.02") as upstream:
        await asyncio.to_thread(installation.add_account, "ada", upstream.base_url())
        with gateway(installation.data_dir, limits, key=installation.key) as process:
            process.wait_ready()
            crowd = Crowd(process.url, process.headers)
            await crowd.press(15.0)
            warm = process.rss()
            await crowd.press(60.0)
            grown = process.rss() - warm
            crowd.assert_only_documented()
            crowd.assert_health_was_prompt()
            await assert_full_service(process.url, process.headers)
            await asyncio.to_thread(upstream.until, lambda observed: observed.running == 0)
    assert grown < 10 * MIB, f"{grown / MIB:.1f} MiB more after a minute"
