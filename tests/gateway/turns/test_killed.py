"""A process that is killed loses nothing: its next start closes what it left open, once."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import httpx
import pytest

from tests.support.processes import GatewayProcess, Installation, gateway, simulator
from tests.support.records import HELLO

TURNS = 50
LIMITS = {"GATEWAY_STREAMS_PER_ACCOUNT": "64"}


async def stream_until_cut(client: httpx.AsyncClient, process: GatewayProcess) -> None:
    """Read a stream that is much too long to end by itself."""
    body = {**HELLO, "model": "gpt-5.5;events=2000"}
    path = f"{process.url}/backend-api/codex/responses"
    try:
        async with client.stream("POST", path, json=body, headers=process.headers) as answer:
            async for _ in answer.aiter_raw():
                pass
    except httpx.HTTPError:
        # The process was killed, as it was meant to be.
        return
    raise AssertionError("the stream ended although nothing ended it")


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_turns_of_a_killed_process_are_in_the_ledger_as_interrupted_once(tmp_path: Path) -> None:
    installation = await asyncio.to_thread(Installation.create, tmp_path)
    with simulator(tmp_path, "--interval", "0.05") as upstream:
        await asyncio.to_thread(installation.add_account, "ada", upstream.base_url())
        killed = await asyncio.to_thread(GatewayProcess, installation.data_dir, LIMITS, key=installation.key)
        try:
            await asyncio.to_thread(killed.wait_ready)
            limits = httpx.Limits(max_connections=TURNS)
            async with httpx.AsyncClient(limits=limits, trust_env=False, timeout=30) as client:
                streams = [asyncio.ensure_future(stream_until_cut(client, killed)) for _ in range(TURNS)]
                await asyncio.to_thread(upstream.until, lambda observed: observed.running == TURNS)
                assert [turn.outcome for turn in killed.ledger.turns()] == [""] * TURNS
                await asyncio.to_thread(killed.stop, signal.SIGKILL)
                await asyncio.gather(*streams)
        finally:
            await asyncio.to_thread(killed.stop, signal.SIGKILL)
        for reports in (1, 0):
            # It is told at the start, before the first request: nobody waits for a heartbeat to grow old.
            with gateway(installation.data_dir, LIMITS, key=installation.key) as again:
                turns = again.ledger.turns()
                assert len(turns) == TURNS
                assert {(turn.outcome, turn.cause) for turn in turns} == {("interrupted", "process_died")}
                assert again.output().count("interrupted_turns_closed") == reports
