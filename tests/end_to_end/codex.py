"""The Codex CLI as its user runs it: a home with the printed configuration, a folder to work in, a key."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import ROOT, GatewayProcess, environment

# A slug of the client's own catalogue: with an `env_key` it asks no server for models.
MODEL = "gpt-5.5"
PATIENCE = 40.0


@dataclass(frozen=True)
class Codex:
    """A client with a home of its own; `run` and `resume` are two processes, as two commands in a terminal are."""

    program: str
    home: Path
    work: Path
    gateway: GatewayProcess

    def run(self, prompt: str) -> subprocess.CompletedProcess[str]:
        return self._exec(["exec", *self._options(), prompt])

    def resume(self, prompt: str) -> subprocess.CompletedProcess[str]:
        """Go on with the newest conversation."""
        return self._exec(["exec", "resume", "--last", *self._options(), prompt])

    def _options(self) -> list[str]:
        return ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]

    def _exec(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        variables = {"CODEX_HOME": str(self.home), "HOME": str(self.home), "POINTSMAN_API_KEY": self.gateway.key}
        return subprocess.run(
            [self.program, *arguments],
            cwd=self.work,
            env=environment(self.gateway.data_dir, variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )


@contextmanager
def codex(
    program: str, gateway: GatewayProcess, work: Path, *, websockets: bool, url: str | None = None
) -> Iterator[Codex]:
    """A client that is configured for `gateway`, which it reaches at `url` when something stands in front of it."""
    # The client warns about a home below the system's temporary folder.
    place = ROOT / "var"
    place.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="codex-home-", dir=place, ignore_cleanup_errors=True) as name:
        home = Path(name)
        (home / "config.toml").write_text(configuration(url or gateway.url, websockets=websockets))
        yield Codex(program, home, work, gateway)


def configuration(url: str, *, websockets: bool) -> str:
    return f"""\
model = "{MODEL}"
model_provider = "pointsman"
check_for_update_on_startup = false

[model_providers.pointsman]
name = "Pointsman"
base_url = "{url}/backend-api/codex"
env_key = "POINTSMAN_API_KEY"
wire_api = "responses"
supports_websockets = {str(websockets).lower()}
"""
