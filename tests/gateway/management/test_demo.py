"""The demo as its user runs it: a process of its own, in an environment that knows nothing of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.processes import ROOT, environment


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    """The demo, told to put its temporary files into `folder`; the settings of a real gateway are in its way."""
    misleading = {"TMPDIR": str(folder), "DATABASE_URL": "sqlite:////nowhere/at/all", "PORT": "1"}
    return subprocess.Popen(
        [sys.executable, "manage.py", "demo", "--interval", "0", *options],
        cwd=ROOT,
        env=environment(folder.parent / "data", misleading),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What one whole demo has printed; it must have succeeded and left nothing behind."""
    folder = tmp_path_factory.mktemp("demo")
    process = start(folder)
    output, _ = process.communicate(timeout=50)
    assert process.returncode == 0, output
    assert os.listdir(folder) == []
    return output


def test_it_shows_the_text_of_every_turn(shown: str) -> None:
    assert "Every word is here as soon as the account has said it." in shown
    assert "This connection stays open, and the next turn continues on it." in shown
    assert "The same conversation, now with an account that is not limited." in shown


def test_it_says_which_account_served_each_turn_and_how_it_was_reached(shown: str) -> None:
    served = re.findall(r"served by (\w+), reached over (HTTP|a WebSocket)", shown)
    assert [transport for _, transport in served] == ["HTTP", "a WebSocket", "HTTP"]
    assert {account for account, _ in served} == {"ada", "bo"}


def test_a_limited_account_rests_and_the_other_one_takes_its_turn(shown: str) -> None:
    first, _, last = re.findall(r"served by (\w+)", shown)
    assert f"{first} is at its usage limit" in shown
    assert last != first


def test_it_says_where_to_go_next(shown: str) -> None:
    assert "manage.py serve" in shown
    assert "README.md" in shown
    assert "Everything is stopped and removed" in shown


@pytest.mark.slow
def test_what_it_keeps_answers_until_it_is_interrupted_and_is_then_removed(tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    process = start(folder, "--keep")
    try:
        told = read_until(process, "list_accounts")
        found = re.search(r"OpenAI\s+(\S+)/v1", told)
        assert found is not None, told
        assert httpx.get(f"{found[1]}/readyz", trust_env=False).json()["ready"] is True
        assert re.search(r"user admin, password \S+", told)
        assert re.search(r"API key\s+pm_\S+", told)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, output
    assert os.listdir(folder) == []
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{found[1]}/readyz", trust_env=False)


def read_until(process: subprocess.Popen[str], end: str) -> str:
    """The lines that the process prints, up to the first one that contains `end`."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if end in line:
            break
    return "".join(lines)
