"""Two real processes, one SQLite file, one refresh token that works once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.accounts.issuing import access_token

ROOT = Path(__file__).resolve().parents[2]


class StrictIssuer(ThreadingHTTPServer):
    """Gives tokens for the newest refresh token alone, and counts those that came too late."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.number = 0
        self.reused = 0

    def exchange(self, refresh_token: str) -> tuple[int, dict[str, object]]:
        with self.lock:
            if refresh_token != f"refresh-{self.number}":
                self.reused += 1
                return 401, {"error": {"code": "refresh_token_reused"}}
            self.number += 1
            return 200, {"access_token": access_token(self.number), "refresh_token": f"refresh-{self.number}"}


class Handler(BaseHTTPRequestHandler):
    server: StrictIssuer
    protocol_version = "HTTP/1.1"
    # Head and body go out in one packet each; waiting for an acknowledgement in between takes 40 ms.
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        status, answer = self.server.exchange(asked["refresh_token"])
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Silent: the test's own output is enough."""


@contextmanager
def running_issuer() -> Iterator[StrictIssuer]:
    issuer = StrictIssuer()
    thread = threading.Thread(target=issuer.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield issuer
    finally:
        issuer.shutdown()
        thread.join()
        issuer.server_close()


@pytest.mark.parametrize("refreshes", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_two_processes_refresh_one_single_use_token_again_and_again_without_losing_it(tmp_path, refreshes):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GATEWAY_", "DATABASE_"))}
    with running_issuer() as issuer:
        environment = {
            **kept,
            "DJANGO_SETTINGS_MODULE": "gateway.settings",
            "GATEWAY_DATA_DIR": str(tmp_path),
            "GATEWAY_TOKEN_URL": f"http://127.0.0.1:{issuer.server_port}/oauth/token",
        }
        ended = subprocess.run(
            [sys.executable, "-m", "tests.accounts.contenders", str(refreshes)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    results = [json.loads(line) for line in lines if line.startswith("{")]
    assert len(results) == 2, ended.stdout + ended.stderr
    assert lines[-1] == f"active refresh-{issuer.number}"
    assert issuer.reused == 0
    assert issuer.number >= refreshes
    refreshed = [result.get("refreshed", 0) for result in results]
    assert sum(refreshed) == issuer.number
    # In a short run one process may be done before the other has begun.
    assert all(refreshed) or refreshes < 200
