"""Limits of keys on two real gateway processes that share a PostgreSQL database."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import psycopg
import pytest

from tests.support.postgres import require_postgres
from tests.support.processes import ROOT, GatewayProcess, SimulatorProcess, environment, gateway, run_command, simulator

BODY = {"model": "gpt-5.5", "stream": True, "input": "hi"}
MANY = 40
AT_ONCE = 4


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[GatewayProcess], SimulatorProcess]]:
    """Two gateways with a database of their own, and the upstream behind them."""
    server = require_postgres()
    name = f"keys_{uuid.uuid4().hex[:8]}"
    url = server.rpartition("/")[0] + f"/{name}"
    folder = tmp_path_factory.mktemp("limits")
    with psycopg.connect(server.replace("postgres://", "postgresql://", 1), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    try:
        with ExitStack() as stack:
            upstream = stack.enter_context(simulator(folder, "--interval", "0.01"))
            extra = {"DATABASE_URL": url, "GATEWAY_STREAMS_PER_ACCOUNT": "100"}
            assert run_command(folder, "migrate", "--verbosity", "0", extra=extra).returncode == 0
            first = stack.enter_context(gateway(folder, extra))
            second = stack.enter_context(gateway(folder, extra))
            first.add_account("ada", upstream.base_url())
            second.wait_ready()
            yield [first, second], upstream
    finally:
        with psycopg.connect(server.replace("postgres://", "postgresql://", 1), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def limited_key(process: GatewayProcess, **limits: int) -> str:
    """Make a key with `limits`; its text."""
    name = f"limited-{uuid.uuid4().hex[:6]}"
    key = process.manage("create_api_key", name).strip()
    fields = ", ".join(f"{field}={most}" for field, most in limits.items())
    script = f"from gateway.models import ApiKey; ApiKey.objects.filter(name={name!r}).update({fields})"
    subprocess.run(
        [sys.executable, "manage.py", "shell", "-v", "0", "-c", script],
        cwd=ROOT,
        env=environment(process.data_dir, process.extra),
        check=True,
        capture_output=True,
    )
    return key


async def press(gateways: list[GatewayProcess], key: str, tokens: Counter[str] | None = None) -> Counter[int | str]:
    """Ask both gateways at once, again and again; how often each status and code came."""
    await asyncio.sleep(2.5)  # both know the key and its limits by then
    told: Counter[int | str] = Counter()
    async with httpx.AsyncClient(trust_env=False, timeout=60, headers={"authorization": f"Bearer {key}"}) as client:

        async def ask(process: GatewayProcess) -> None:
            for _ in range(MANY // AT_ONCE):
                answer = await client.post(f"{process.url}/v1/responses", json=BODY)
                told[answer.status_code] += 1
                if answer.status_code == 429:
                    told[answer.json()["error"]["code"]] += 1
                elif tokens is not None:
                    last = [line for line in answer.text.splitlines() if line.startswith("data: {")][-1]
                    tokens["spent"] += json.loads(last[6:])["response"]["usage"]["total_tokens"]

        await asyncio.gather(*(ask(process) for process in gateways for _ in range(AT_ONCE)))
    return told


async def requests_of_day(process: GatewayProcess, key: str) -> dict[str, int]:
    """What the holder of the key is told of today's requests."""
    async with httpx.AsyncClient(trust_env=False, headers={"authorization": f"Bearer {key}"}) as client:
        usage = (await client.get(f"{process.url}/v1/usage")).json()
    return next(window for window in usage["windows"] if window["window"] == "day")["requests"]


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_a_number_of_requests_is_kept_by_two_processes(
    pair: tuple[list[GatewayProcess], SimulatorProcess],
) -> None:
    gateways, upstream = pair
    key = await asyncio.to_thread(limited_key, gateways[0], requests_per_day=25)
    upstream.forget()
    told = await press(gateways, key)
    served = len(upstream.observed().requests)
    assert told[200] == served
    # Whatever was opening on both at the very same moment; the requests in flight never were more than these.
    assert 25 <= served <= 25 + 2 * AT_ONCE
    assert told["key_requests_per_day"] == 2 * MANY - served
    # A claim that was given back counts until the next write tells the other process.
    async with asyncio.timeout(10):
        while (used := await requests_of_day(gateways[1], key)) != {"used": served, "limit": 25}:
            assert used["used"] > served
            await asyncio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_a_number_of_tokens_is_overrun_by_what_was_in_flight_alone(
    pair: tuple[list[GatewayProcess], SimulatorProcess],
) -> None:
    gateways, _ = pair
    one: Counter[str] = Counter()
    key = await asyncio.to_thread(limited_key, gateways[0], tokens_per_month=1000)
    told = await press(gateways, key, one)
    each = one["spent"] / told[200]
    assert one["spent"] >= 1000
    # A turn is in flight until its end is in the ledger, a quarter of a second after its last event at the latest.
    assert one["spent"] <= 1000 + each * 4 * AT_ONCE
    assert told["key_tokens_per_month"] > 0


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_turns_at_once_are_kept_by_two_processes(pair: tuple[list[GatewayProcess], SimulatorProcess]) -> None:
    gateways, upstream = pair
    key = await asyncio.to_thread(limited_key, gateways[0], concurrent_turns=3)
    most = 0
    ended = asyncio.Event()

    async def watch() -> None:
        nonlocal most
        while not ended.is_set():
            most = max(most, (await asyncio.to_thread(upstream.observed)).running)
            await asyncio.sleep(0.01)

    watching = asyncio.ensure_future(watch())
    told = await press(gateways, key)
    ended.set()
    await watching
    assert told[200] > 0
    # A turn's place is free with its last event, which the upstream sends a moment before it counts the turn as ended.
    assert most <= 3 + 2
