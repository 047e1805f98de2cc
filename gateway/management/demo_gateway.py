"""The gateway of the demo: the real commands, on a data folder of their own."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from pathlib import Path
from types import TracebackType

START_LIMIT = 30.0
STOP_LIMIT = 10.0
LOG_LINES = 15
LOG_WIDTH = 400
# They would lead the demo to the database or the port of a real installation.
FOREIGN = frozenset({"PORT", "DATABASE_URL", "DEBUG", "ALLOWED_HOSTS", "DJANGO_SETTINGS_MODULE"})

ANNOUNCED = re.compile(
    r"ready on (?P<url>http://\S+).*password (?P<password>\S+).*API key\s+(?P<key>pm_\S+)",
    re.DOTALL,
)


class StartFailed(Exception):
    """A command of the demo's gateway failed. The message holds what the command said."""


class DemoGateway:
    """`manage.py serve` on a free port. Prepare it with `run` and `add_account`, then use it as a context manager.

    `url`, `key` and `password` are known while it runs.
    """

    def __init__(self, data_dir: Path, manage: Path) -> None:
        self.data_dir = data_dir
        self.url = self.key = self.password = ""
        self._manage = str(manage)
        self._log = data_dir / "gateway.log"
        self._process: Process | None = None

    async def __aenter__(self) -> DemoGateway:
        """Start it; returns when it serves, and raises `StartFailed` when it does not come to that."""
        with self._log.open("wb") as log:
            self._process = await self._spawn("serve", "--port", "0", stdout=PIPE, stderr=log.fileno())
        try:
            async with asyncio.timeout(START_LIMIT):
                announced = await self._announcement(self._process)
        except (StartFailed, TimeoutError, asyncio.CancelledError) as error:
            await self._stop(self._process)
            if isinstance(error, asyncio.CancelledError):
                raise
            raise StartFailed(f"The gateway did not start.\n{self.log()}") from None
        self.url, self.key, self.password = announced["url"], announced["key"], announced["password"]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it in good order; kill it when that takes too long."""
        if self._process is not None:
            await self._stop(self._process)

    async def run(self, *arguments: str, stdin: str = "") -> None:
        """Run another command on the same installation to its end; raises `StartFailed` when it fails."""
        process = await self._spawn(*arguments, stdin=PIPE, stdout=PIPE, stderr=STDOUT)
        try:
            output, _ = await process.communicate(stdin.encode())
        finally:
            await self._stop(process)
        if process.returncode != 0:
            raise StartFailed(f"manage.py {arguments[0]} failed.\n{output.decode(errors='replace')}")

    async def add_account(self, name: str, token: str, base_url: str) -> None:
        """Add an account that is reached at `base_url` with `token`; raises `StartFailed`."""
        await self.run(
            "add_account", name, "--kind", "openai", "--api-key-file", "-", "--base-url", base_url, stdin=token
        )

    async def wait(self) -> None:
        """Wait until the gateway ends by itself."""
        if self._process is not None:
            await self._process.wait()

    def log(self) -> str:
        """The end of what the gateway has logged, each line cut to a readable length."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(line[:LOG_WIDTH] for line in lines[-LOG_LINES:])

    async def _announcement(self, process: Process) -> dict[str, str]:
        """Read standard output until address, password and key were told. What follows fits into the pipe."""
        assert process.stdout is not None  # noqa: S101  # it was started with a pipe
        text = ""
        while (found := ANNOUNCED.search(text)) is None:
            line = await process.stdout.readline()
            if not line:
                raise StartFailed("The gateway ended before it served.")
            text += line.decode(errors="replace")
        return found.groupdict()

    async def _spawn(self, *arguments: str, stdin: int = DEVNULL, stdout: int, stderr: int) -> Process:
        """A session of its own keeps the terminal's Ctrl-C from it: the demo stops it, in order."""
        return await asyncio.create_subprocess_exec(
            sys.executable,
            self._manage,
            *arguments,
            env=environment(self.data_dir),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )

    async def _stop(self, process: Process) -> None:
        if process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(STOP_LIMIT):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def environment(data_dir: Path) -> dict[str, str]:
    """The environment without anything that belongs to another installation."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_") and name not in FOREIGN
    }
    return {**kept, "GATEWAY_DATA_DIR": str(data_dir)}
