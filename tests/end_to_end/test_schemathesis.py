"""Schemathesis reads the published document and sends what it allows, and what it does not: no defect, no hang."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.optional import require_module
from tests.support.processes import GatewayProcess, Installation, SimulatorProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.fixture(scope="module")
def gateway(new_installation: Callable[[], Installation]) -> Iterator[GatewayProcess]:
    for process in new_installation().serve():
        process.wait_ready()
        yield process


def test_nothing_that_can_be_sent_is_answered_by_a_defect(
    gateway: GatewayProcess, upstream: SimulatorProcess, tmp_path: Path
):
    require_module("schemathesis")
    program = Path(sys.executable).with_name("schemathesis")
    arguments = ["--checks", CHECKS, "--phases", "coverage,fuzzing", "--max-examples", "25", "--request-timeout", "10"]
    done = subprocess.run(
        [
            program, "run", f"{gateway.url}/v1/openapi.json", "--header", f"Authorization: Bearer {gateway.key}",
            *arguments, "--continue-on-failure", "--no-color",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=550, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    assert "Traceback" not in gateway.output()
    assert httpx.get(f"{gateway.url}/healthz", trust_env=False).status_code == 200
