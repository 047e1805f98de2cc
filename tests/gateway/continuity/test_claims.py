"""Eight real processes that claim a thousand conversations at once, on either database."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.support.postgres import temporary_database
from tests.support.processes import ROOT, environment

PROCESSES, SESSIONS = 8, 1000


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_of_many_that_claim_a_conversation_exactly_one_wins_it(tmp_path: Path, database: str) -> None:
    with temporary_database() if database == "postgresql" else nullcontext() as url:
        said = claim_at_once(tmp_path, {} if url is None else {"DATABASE_URL": url})
    assert [each["error"] for each in said if "error" in each] == []
    assert len(said) == PROCESSES
    won = Counter(session for each in said for session, _ in each["won"])
    assert won == {f"thread-id:{number}": 1 for number in range(SESSIONS)}
    assert {epoch for each in said for _, epoch in each["won"]} == {1}


def claim_at_once(tmp_path: Path, extra: dict[str, str]) -> list[dict[str, Any]]:
    """What each process said in the end."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.gateway.continuity.claimants", str(PROCESSES), str(SESSIONS)],
        cwd=ROOT,
        env=environment(tmp_path, {"DJANGO_SETTINGS_MODULE": "gateway.settings", **extra}),
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]
