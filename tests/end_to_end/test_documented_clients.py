"""Every block of `docs/clients.md`, run as it stands there: only the address is that of the test's own gateway."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.optional import require_node_package, require_program
from tests.support.processes import PROXIES, ROOT, GatewayProcess, Installation, SimulatorProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.real_client,
    pytest.mark.timeout(240),
]

PAGE = ROOT / "docs" / "clients.md"
ADDRESS = "http://127.0.0.1:8045"


@pytest.fixture(scope="module")
def gateway(new_installation: Callable[[], Installation]) -> Iterator[GatewayProcess]:
    for process in new_installation().serve():
        process.wait_ready()
        yield process


@pytest.fixture(autouse=True)
def simulated(upstream: SimulatorProcess) -> SimulatorProcess:
    return upstream


def blocks(language: str, gateway: GatewayProcess) -> list[str]:
    """The blocks of the page in one language, with the gateway's address in the place of the usual one."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [block.replace(ADDRESS, gateway.url) for block in found]


def run(gateway: GatewayProcess, work: Path, *command: str, stdin: str = "", **variables: str) -> str:
    """The output of a command that must succeed, with the key where the page puts it."""
    kept = {name: value for name, value in os.environ.items() if name not in PROXIES}
    done = subprocess.run(
        command,
        cwd=work,
        env={**kept, "PWD": str(work), "NO_PROXY": "127.0.0.1", "POINTSMAN_API_KEY": gateway.key, **variables},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_has_the_blocks_that_are_run_here(gateway: GatewayProcess) -> None:
    counts = {name: len(blocks(name, gateway)) for name in ("toml", "json", "python", "js", "sh")}
    assert counts == {"toml": 1, "json": 1, "python": 1, "js": 1, "sh": 3}
    assert PAGE.read_text(encoding="utf-8").count("```") == 2 * sum(counts.values())


def test_codex(gateway: GatewayProcess, tmp_path: Path) -> None:
    program = require_program("codex")
    place = ROOT / "var"
    place.mkdir(mode=0o700, exist_ok=True)
    # The client warns about a home below the system's temporary folder.
    with tempfile.TemporaryDirectory(prefix="codex-home-", dir=place, ignore_cleanup_errors=True) as home:
        (block,) = blocks("toml", gateway)
        (Path(home) / "config.toml").write_text(block)
        told = run(gateway, tmp_path, program, "exec", "--skip-git-repo-check", "hi", CODEX_HOME=home, HOME=home)
    assert told.strip() == "Hello from ada."


def test_opencode(gateway: GatewayProcess, tmp_path: Path) -> None:
    program = require_program("opencode")
    (block,) = blocks("json", gateway)
    assert json.loads(block)
    work, home = tmp_path / "work", str(tmp_path / "home")
    work.mkdir()
    (work / "opencode.json").write_text(block)
    quiet = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    folders = {"HOME": home, "XDG_CONFIG_HOME": home, "XDG_DATA_HOME": home, "XDG_CACHE_HOME": home}
    told = run(gateway, work, program, "run", "--model", "pointsman/gpt-5.5", stdin="hi", **quiet, **folders)
    assert "Hello from ada." in told


def test_the_python_sdk(gateway: GatewayProcess, tmp_path: Path) -> None:
    (block,) = blocks("python", gateway)
    assert run(gateway, tmp_path, sys.executable, "-c", block) == "Hello from ada.\n"


def test_the_node_sdk(gateway: GatewayProcess, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(require_node_package("openai"))
    (block,) = blocks("js", gateway)
    (tmp_path / "block.mjs").write_text(block)
    assert run(gateway, tmp_path, "node", "block.mjs") == "Hello from ada.\n"


def test_the_commands_of_a_shell(gateway: GatewayProcess, tmp_path: Path) -> None:
    assert shutil.which("curl")
    key, ask, usage = blocks("sh", gateway)
    assert key == "export POINTSMAN_API_KEY=pm_…\n"
    assert "event: response.completed" in run(gateway, tmp_path, "sh", "-e", "-c", ask)
    told = json.loads(run(gateway, tmp_path, "sh", "-e", "-c", usage))
    assert (told["object"], told["key"]) == ("usage", "first")
