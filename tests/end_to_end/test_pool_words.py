"""What a client of a real gateway reads when one account is at its limit and the other is behind a dead proxy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.processes import GatewayProcess, Installation, SimulatorProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def gateway(template: Installation, upstream: SimulatorProcess, tmp_path: Path) -> Iterator[GatewayProcess]:
    installation = template.copy(tmp_path / "data")
    installation.add_account("ada", upstream.base_url())
    dead = tmp_path / "proxy"
    dead.write_text("socks5://name:secret@127.0.0.1:1\n")
    installation.add_account("bo", upstream.base_url(), "--proxy-file", str(dead))
    yield from installation.serve()


def test_it_reads_what_is_with_both_and_when_the_first_is_back(gateway: GatewayProcess, upstream: SimulatorProcess):
    gateway.wait_ready()
    upstream.add_fault("usage_limit:7200@ada")
    for path, status in (("/v1/responses", 502), ("/backend-api/codex/responses", 503)):
        answer = httpx.post(
            gateway.url + path,
            json={"model": "gpt-5.5", "input": "hi", "stream": True},
            headers=gateway.headers,
            trust_env=False,
            timeout=30,
        )
        error = answer.json()["error"]
        assert answer.status_code == status
        assert "2 accounts: 1 limited until " in error["message"]
        assert ", 1 excluded: upstream_" in error["message"]
        assert error["resets_at"] - time.time() == pytest.approx(7200, abs=60)
        assert "secret" not in answer.text
    table = gateway.manage("list_accounts")
    assert "socks5://…@127.0.0.1:1" in table
    assert "2 accounts: 1 active, 1 limited." in table
