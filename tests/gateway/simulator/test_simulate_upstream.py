import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from django.core.management import CommandError, call_command

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--fault", "nothing"], "'nothing' is unknown; known faults are"),
        (["--events", "0"], "--events must be at least 1"),
        (["--interval", "-1"], "--interval must not be negative"),
    ],
)
def test_what_cannot_work_stops_it_with_one_sentence(arguments: list[str], problem: str) -> None:
    with pytest.raises(CommandError, match=problem):
        call_command("simulate_upstream", *arguments)


def test_it_prints_its_urls_serves_and_stops_on_ctrl_c(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "manage.py", "simulate_upstream", "--port", "0", "--fault", "http:500#1", "--events", "2"],
        cwd=ROOT,
        env={**os.environ, "GATEWAY_DATA_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    printed = "".join(process.stdout.readline() for _ in range(3))
    found = re.search(r"http://127\.0\.0\.1:\d+/v1", printed)
    assert found is not None
    with httpx.Client(headers={"authorization": "Bearer sim-ada"}, trust_env=False, verify=False) as client:
        statuses = [client.post(f"{found[0]}/responses", json={"model": "m"}).status_code for _ in range(2)]
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read()
    process.stdout.close()

    assert "/backend-api/codex" in printed
    assert statuses == [500, 200]
    assert "add_account" in rest
    assert "has stopped. <Observed 1 completed, 1 faulted" in rest
    assert process.wait(timeout=10) == 0
