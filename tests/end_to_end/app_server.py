"""`codex app-server`, the part of Codex that IDEs talk to: JSON-RPC over its standard input and output."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE = 40.0


class AppServer:
    """A running server; `call` it in turn."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._told: queue.Queue[dict[str, Any]] = queue.Queue()
        self._number = 0
        self.notes: list[dict[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def call(self, method: str, **params: Any) -> Any:
        """The result of a call; raises `AssertionError` with what was told instead. Notes that come are kept."""
        self._number += 1
        self._say({"id": self._number, "method": method, "params": params})
        while (told := self._next()).get("id") != self._number or "method" in told:
            self.notes.append(told)
        assert "result" in told, told
        return told["result"]

    def note(self, method: str) -> None:
        self._say({"method": method})

    def until(self, method: str) -> Any:
        """Wait for a note; its parameters."""
        while not (found := [note for note in self.notes if note.get("method") == method]):
            self.notes.append(self._next())
        return found[-1]["params"]

    def _next(self) -> dict[str, Any]:
        try:
            return self._told.get(timeout=PATIENCE)
        except queue.Empty:
            raise AssertionError(f"the client said no more; until now: {self.notes}") from None

    def _say(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._told.put(json.loads(line))


@contextmanager
def app_server(program: str, environment: Mapping[str, str], work: Path) -> Iterator[AppServer]:
    """A started server that knows its client."""
    with (work / "app-server.log").open("wb") as log:
        process = subprocess.Popen(
            [program, "app-server"],
            cwd=work,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        server = AppServer(process)
        server.call("initialize", clientInfo={"name": "tests", "title": "Tests", "version": "1"})
        server.note("initialized")
        yield server
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
