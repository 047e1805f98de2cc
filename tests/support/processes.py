"""Real processes for tests: a gateway as its operator runs it, and a simulated upstream beside it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT = 30.0
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy", "NO_PROXY")


def environment(data_dir: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """A clean environment for a process: nothing of the test run's own settings, no proxies."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GATEWAY_", "DJANGO_", "DATABASE_", "PYTEST_")) and name not in (*PROXIES, "PORT")
    }
    return {**kept, "GATEWAY_DATA_DIR": str(data_dir), "PYTHONUNBUFFERED": "1", **extra}


class ManagedProcess:
    """A `manage.py` command that keeps running; its output is collected in a file."""

    def __init__(self, arguments: list[str], data_dir: Path, extra: Mapping[str, str]) -> None:
        self.log = Path(tempfile.mkstemp(suffix=".log", dir=data_dir)[1])
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", *arguments],
                cwd=ROOT,
                env=environment(data_dir, extra),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def output(self) -> str:
        return self.log.read_text()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until the output matches; raises `AssertionError` with the output when it does not come to that."""
        deadline = time.monotonic() + START_LIMIT
        while time.monotonic() < deadline:
            found = re.search(pattern, self.output())
            if found is not None:
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"no {pattern!r} in the output:\n{self.output()}")

    def stop(self, how: int = signal.SIGTERM) -> int:
        """End the process and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def rss(self) -> int:
        """Resident memory in bytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


class GatewayProcess(ManagedProcess):
    """`manage.py serve` on a free port with a data folder of its own."""

    def __init__(self, data_dir: Path, extra: Mapping[str, str], arguments: tuple[str, ...] = ("--port", "0")) -> None:
        super().__init__(["serve", *arguments], data_dir, extra)
        self.data_dir = data_dir
        self.extra = extra
        self.url = self.wait_for(r"ready on (http://\S+)").group(1)
        key = re.search(r"API key\s+(pm_\S+)", self.output())
        self.key = key.group(1) if key else ""

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    @property
    def websocket_url(self) -> str:
        return self.url.replace("http", "ws", 1)

    def manage(self, *arguments: str, stdin: str = "") -> str:
        """Run another command on the same installation; raises `CalledProcessError` when it fails."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=environment(self.data_dir, self.extra),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    def add_account(self, name: str, base_url: str, *options: str, token: str | None = None) -> None:
        """Add an account with an API key and wait until the running gateway knows it."""
        self.manage(
            "add_account", name, "--kind", "openai", "--api-key-file", "-", "--base-url", base_url, *options,
            stdin=token or f"sk-{name}",
        )  # fmt: skip
        self.wait_ready()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 10
        while httpx.get(f"{self.url}/readyz", trust_env=False).status_code != 200:
            assert time.monotonic() < deadline, "the gateway did not become ready"
            time.sleep(0.05)


@contextmanager
def gateway(data_dir: Path, extra: Mapping[str, str] | None = None) -> Iterator[GatewayProcess]:
    """A running gateway; stopped in good order at the end."""
    process = GatewayProcess(data_dir, extra or {})
    try:
        yield process
    finally:
        process.stop()


class SimulatorProcess(ManagedProcess):
    """`manage.py simulate_upstream` on a free port."""

    def __init__(self, data_dir: Path, *arguments: str) -> None:
        super().__init__(["simulate_upstream", "--port", "0", *arguments], data_dir, {})
        self.root = self.wait_for(r"(http://127\.0\.0\.1:\d+)").group(1)

    def base_url(self, path: str = "/v1") -> str:
        return self.root + path

    def observed(self) -> dict[str, object]:
        """What the upstream has seen, by `/_simulator/observed`."""
        return dict(httpx.get(f"{self.root}/_simulator/observed", trust_env=False).json())

    def forget(self) -> None:
        httpx.delete(f"{self.root}/_simulator/observed", trust_env=False)

    def add_fault(self, *faults: str) -> None:
        answer = httpx.post(f"{self.root}/_simulator/faults", json={"faults": list(faults)}, trust_env=False)
        assert answer.is_success, answer.text

    def clear_faults(self) -> None:
        httpx.delete(f"{self.root}/_simulator/faults", trust_env=False)


@contextmanager
def simulator(data_dir: Path, *arguments: str) -> Iterator[SimulatorProcess]:
    """A running simulated upstream."""
    process = SimulatorProcess(data_dir, *arguments)
    try:
        yield process
    finally:
        process.stop()
