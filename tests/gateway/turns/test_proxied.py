"""Accounts with proxies of their own, on real sockets and over both transports."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from accounts.circuit import CircuitState
from gateway.clock import Clock
from gateway.conf import Tunables
from tests.support.inprocess import World, world
from tests.support.proxies import Proxy, certificate_for_this_machine, proxy
from tests.support.records import HELLO

TRANSPORTS = ("http", "websocket")
SCHEMES = ("http", "https", "socks5")
# A proxy that says nothing is given up soon.
IMPATIENT = Tunables(connect_timeout=0.3, handshake_timeout=0.5)


class NoWaiting(random.Random):
    """Says the lower bound, so that another attempt begins at once."""

    def uniform(self, a: float, b: float) -> float:
        return a


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = certificate_for_this_machine(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    return file


async def give_proxy(w: World, number: int, url: str | None) -> None:
    before = w.store.accounts[number]
    w.store.accounts[number] = replace(before, proxy=url, revision=before.revision + 1)
    await w.runtime.registry.refresh()


@asynccontextmanager
async def proxied(way: Proxy, transport: str, tunables: Tunables = IMPATIENT) -> AsyncIterator[World]:
    """Ada is behind the proxy, and first in line; Bo has none."""
    async with world("ada", "bo", transport=transport, tunables=tunables, clock=Clock(random=NoWaiting())) as w:
        await give_proxy(w, 1, way.url)
        yield w


async def test_a_circuit_that_opens_is_logged_by_the_name_of_its_account() -> None:
    async with proxy("socks5") as way, proxied(way, "http") as w:
        await give_proxy(w, 1, "socks5://127.0.0.1:1")
        with capture_logs() as logs:
            for _ in range(8):
                assert "Hello from bo" in (await w.post(HELLO)).text
    assert {"ada": "open"} in [each["circuits"] for each in logs if each["event"] == "circuit_changed"]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_turn_goes_by_the_proxy_of_its_account(transport: str, scheme: str, certificate: Path) -> None:
    async with proxy(scheme, certificate) as way, proxied(way, transport) as w:
        answer = await w.post(HELLO)
        assert "Hello from ada" in answer.text
        assert way.asked == [w.upstream.base_url("").removeprefix("http://")]


@pytest.mark.parametrize("fault", ["refuse", "hang_up", "silence"])
@pytest.mark.parametrize("scheme", ["http", "socks5"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_dead_proxy_is_a_failed_connection_and_the_turn_goes_elsewhere(
    transport: str, scheme: str, fault: str
) -> None:
    async with proxy(scheme, fault=fault) as way, proxied(way, transport) as w:
        answer = await w.post(HELLO)
        assert "Hello from bo" in answer.text
        (turn,) = await w.settled()
        assert [attempt.get("cause") for attempt in turn["attempts"]] == ["connect_failed", None]
        assert [record.account for record in w.upstream.observed.requests] == ["bo"]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_without_another_account_the_client_is_told_and_nothing_was_sent(transport: str) -> None:
    async with proxy("socks5", fault="refuse") as way, world(transport=transport, clock=Clock(random=NoWaiting())) as w:
        await give_proxy(w, 1, way.url)
        answer = await w.post(HELLO)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] in ("upstream_connect_failed", "upstream_proxy_failed")
        assert not w.upstream.observed.requests


async def test_a_proxy_that_stays_dead_takes_its_account_out_while_others_work() -> None:
    async with proxy("http", fault="hang_up") as way, proxied(way, "http") as w:
        for _ in range(8):
            assert "Hello from bo" in (await w.post(HELLO)).text
        circuits = w.runtime.engine.health.circuits
        assert (circuits.get(1).state, circuits.get(2).state) == (CircuitState.OPEN, CircuitState.CLOSED)


async def test_a_network_that_is_down_for_all_takes_nobody_out() -> None:
    async with proxy("http", fault="hang_up") as way, proxied(way, "http") as w:
        await give_proxy(w, 2, way.url)
        for _ in range(3):
            assert (await w.post(HELLO)).status_code == 503
        circuits = w.runtime.engine.health.circuits
        assert {circuits.get(1).state, circuits.get(2).state} == {CircuitState.CLOSED}


async def test_with_another_proxy_the_old_lanes_are_left() -> None:
    async with proxy("socks5") as one, proxy("socks5") as other, proxied(one, "websocket") as w:
        await w.post(HELLO)
        await give_proxy(w, 1, other.url)
        await asyncio.sleep(0.05)
        assert "Hello from ada" in (await w.post(HELLO)).text
        assert len(one.asked) == len(other.asked) == 1


async def until_left(way: Proxy) -> None:
    async with asyncio.timeout(5):
        while way.open:
            await asyncio.sleep(0.01)


async def test_what_runs_by_a_proxy_that_its_account_leaves_is_carried_to_its_end_and_then_nothing_is_left_there() -> (
    None
):
    slow = {**HELLO, "model": "gpt-5.5;events=40;interval=0.02"}
    patient = Tunables(http_idle_expiry=600)
    async with proxy("http") as one, proxy("http") as other, proxied(one, "http", patient) as w:
        await w.post(HELLO)
        running = asyncio.ensure_future(w.post(slow))
        while len(w.upstream.observed.requests) < 2:
            await asyncio.sleep(0.01)
        await give_proxy(w, 1, other.url)
        assert "Hello from ada" in (await w.post(HELLO)).text
        assert one.open
        assert "response.completed" in (await running).text
        await until_left(one)
        assert other.asked


async def test_nothing_is_left_at_the_proxy_of_an_account_that_leaves_the_pool() -> None:
    async with proxy("socks5") as way, proxied(way, "http", Tunables(http_idle_expiry=600)) as w:
        await w.post(HELLO)
        assert way.open
        del w.store.accounts[1]
        await w.runtime.registry.refresh()
        await until_left(way)
