"""Real processes for tests: a gateway as its operator runs it, and a simulated upstream beside it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec

from gateway.simulator.observed import RequestRecord, SocketRecord
from tests.support.ledger import LedgerFile

ROOT = Path(__file__).resolve().parents[2]
# Generous: a machine that is busy with other tests takes most of a minute to start a gateway of several processes.
START_LIMIT = 60.0
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy", "NO_PROXY")


def environment(data_dir: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """A clean environment for a process: nothing of the test run's own settings, no proxies."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GATEWAY_", "DJANGO_", "DATABASE_", "PYTEST_")) and name not in (*PROXIES, "PORT")
    }
    return {**kept, "GATEWAY_DATA_DIR": str(data_dir), "PYTHONUNBUFFERED": "1", **extra}


def run_command(
    data_dir: Path, *arguments: str, extra: Mapping[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a `manage.py` command to its end, however it ends."""
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env=environment(data_dir, extra or {}),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class ManagedProcess:
    """A `manage.py` command that keeps running; its output, both streams of it, is collected in a file.

    It inherits the open files whose numbers are in `files`.
    """

    def __init__(
        self, arguments: list[str], data_dir: Path, extra: Mapping[str, str], files: Collection[int] = ()
    ) -> None:
        descriptor, name = tempfile.mkstemp(suffix=".log", dir=data_dir)
        self.log = Path(name)
        with os.fdopen(descriptor, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", *arguments],
                cwd=ROOT,
                env=environment(data_dir, extra),
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=files,
            )

    def output(self) -> str:
        return self.log.read_text()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until the output matches; raises `AssertionError` with the output when it does not come to that."""
        deadline = time.monotonic() + START_LIMIT
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            found = re.search(pattern, self.output())
            if found is not None:
                return found
            if ended:
                break
            time.sleep(0.02)
        raise AssertionError(f"no {pattern!r} in the output:\n{self.output()}")

    def wait_started(self, pattern: str) -> str:
        """The first group of `pattern` in the output of a process that starts; one that does not is killed."""
        try:
            return self.wait_for(pattern).group(1)
        except BaseException:  # also when the test run gives up: nobody else knows of this process yet
            # In good order if it can, since workers of its own would outlive it.
            self.send_signal()
            with suppress(subprocess.TimeoutExpired):
                self.wait(5)
            raise

    def send_signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, limit: float = 15.0) -> int:
        """The exit code; a process that does not end within `limit` seconds is killed and raises `TimeoutExpired`."""
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def stop(self, how: int = signal.SIGTERM) -> int:
        """End the process and return its exit code."""
        if self.process.poll() is None:
            self.send_signal(how)
        return self.wait()

    def rss(self) -> int:
        """Resident memory in bytes."""
        return self._memory("VmRSS")

    def peak_rss(self) -> int:
        """The most resident memory, in bytes, since `reset_peak`."""
        return self._memory("VmHWM")

    def reset_peak(self) -> None:
        # proc(5): 5 sets the high-water mark to what is resident now.
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def _memory(self, name: str) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None, status
        return int(found.group(1)) * 1024


class GatewayProcess(ManagedProcess):
    """`manage.py serve` on a free port. `key` is taken from the output where a first start prints one."""

    def __init__(
        self,
        data_dir: Path,
        extra: Mapping[str, str],
        arguments: tuple[str, ...] = ("--port", "0"),
        key: str = "",
        files: Collection[int] = (),
    ) -> None:
        super().__init__(["serve", *arguments], data_dir, extra, files)
        self.data_dir = data_dir
        self.extra = extra
        self.url = self.wait_started(r"ready on (http://\S+)")
        self.ledger = LedgerFile(data_dir / "pointsman.sqlite3")
        printed = re.search(r"API key\s+(pm_\S+)", self.output())
        self.key = printed.group(1) if printed else key

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    @property
    def websocket_url(self) -> str:
        return self.url.replace("http", "ws", 1)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def manage(self, *arguments: str, stdin: str = "") -> str:
        """Run another command on the same installation; its output. Raises `AssertionError` when it fails."""
        return _succeeded(run_command(self.data_dir, *arguments, extra=self.extra, stdin=stdin))

    def add_account(self, name: str, base_url: str, *options: str, token: str | None = None) -> None:
        """Add an account with an API key and wait until the running gateway knows it."""
        self.manage(*_add_account(name, base_url, *options), stdin=token or f"sk-{name}")
        self.wait_ready()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 10
        while httpx.get(f"{self.url}/readyz", trust_env=False).status_code != 200:
            assert time.monotonic() < deadline, "the gateway did not become ready"
            time.sleep(0.05)


@contextmanager
def gateway(data_dir: Path, extra: Mapping[str, str] | None = None, *, key: str = "") -> Iterator[GatewayProcess]:
    """A running gateway; stopped in good order at the end."""
    process = GatewayProcess(data_dir, extra or {}, key=key)
    try:
        yield process
    finally:
        process.stop()


@dataclass(frozen=True)
class Installation:
    """A data folder after its first start, with no process on it: a gateway that starts here prints no secret."""

    data_dir: Path
    key: str = field(repr=False)
    password: str = field(repr=False)

    @classmethod
    def create(cls, data_dir: Path) -> Installation:
        """Start a gateway once and stop it."""
        with gateway(data_dir) as first:
            password = first.wait_for(r"password (\S+)").group(1)
        first.log.unlink()
        return cls(data_dir, first.key, password)

    def copy(self, data_dir: Path) -> Installation:
        """The same installation in another folder, which must not exist."""
        shutil.copytree(self.data_dir, data_dir)
        return Installation(data_dir, self.key, self.password)

    def add_account(self, name: str, base_url: str, *options: str) -> None:
        """Add an account whose token is `sk-<name>`."""
        arguments = _add_account(name, base_url, *options)
        _succeeded(run_command(self.data_dir, *arguments, stdin=f"sk-{name}"))

    def serve(self, **extra: str) -> Iterator[GatewayProcess]:
        """A running gateway, for fixtures to `yield from`; `extra` goes into its environment."""
        with gateway(self.data_dir, extra, key=self.key) as process:
            yield process


def _add_account(name: str, base_url: str, *options: str) -> list[str]:
    return ["add_account", name, "--kind", "openai", "--api-key-file", "-", "--base-url", base_url, *options]


def _succeeded(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclass(frozen=True)
class Observations:
    """What a simulated upstream has seen; records are in order, the oldest first."""

    open_sockets: int
    running: int
    requests: list[RequestRecord]
    sockets: list[SocketRecord]


class SimulatorProcess(ManagedProcess):
    """`manage.py simulate_upstream` on a free port."""

    def __init__(self, data_dir: Path, *arguments: str) -> None:
        super().__init__(["simulate_upstream", "--port", "0", *arguments], data_dir, {})
        self.root = self.wait_started(r"(http://127\.0\.0\.1:\d+)")
        # Without certificates to load, since all of this is plain HTTP.
        self._control = httpx.Client(base_url=f"{self.root}/_simulator", trust_env=False, verify=False)

    def stop(self, how: int = signal.SIGTERM) -> int:
        self._control.close()
        return super().stop(how)

    def base_url(self, path: str = "/v1") -> str:
        return self.root + path

    def observed(self) -> Observations:
        """What the upstream has seen until now."""
        answer = self._control.get("/observed")
        return msgspec.json.decode(answer.content, type=Observations)

    def until(self, condition: Callable[[Observations], object], limit: float = 10.0) -> Observations:
        """Wait until `condition` holds for what has been observed, and return that."""
        deadline = time.monotonic() + limit
        while not condition(observed := self.observed()):
            assert time.monotonic() < deadline, f"not observed within {limit:g} s: {observed}"
            time.sleep(0.005)
        return observed

    def forget(self) -> None:
        self._control.delete("/observed")

    def add_fault(self, *faults: str) -> None:
        answer = self._control.post("/faults", json={"faults": list(faults)})
        assert answer.is_success, answer.text

    def clear_faults(self) -> None:
        self._control.delete("/faults")


@contextmanager
def simulator(data_dir: Path, *arguments: str) -> Iterator[SimulatorProcess]:
    """A running simulated upstream; stopped at the end."""
    process = SimulatorProcess(data_dir, *arguments)
    try:
        yield process
    finally:
        process.stop()
