"""The real Codex CLI when its upstream fails: it goes on within one reconnect, and no tool runs twice."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.codex import Codex, codex
from tests.support.optional import require_program
from tests.support.processes import GatewayProcess, Installation, SimulatorProcess, environment, simulator

pytestmark = [pytest.mark.slow, pytest.mark.real_client]

KEEPALIVE = "0.5"
# The client gives up a stream on which nothing it knows as an event came for so long.
CLIENT_PATIENCE_MS = 4000
Run = subprocess.CompletedProcess[str]
# The client's own messages are as loose as its protocol is.
Json = dict[str, Any]


@pytest.fixture(scope="module")
def program() -> str:
    return require_program("codex")


@pytest.fixture(scope="module")
def gateway(program: str, new_installation: Callable[[], Installation]) -> Iterator[GatewayProcess]:
    yield from new_installation().serve(GATEWAY_KEEPALIVE_INTERVAL=KEEPALIVE)


@pytest.fixture
def pool_gateway(
    program: str, new_installation: Callable[[], Installation], simulator_process: SimulatorProcess
) -> Iterator[GatewayProcess]:
    """Two accounts, ada and bo."""
    installation = new_installation()
    installation.add_account("bo", simulator_process.base_url())
    yield from installation.serve()


def tool(seconds: float = 0) -> str:
    """A prompt whose command shows that it ran, once for each time."""
    return f"run: sleep {seconds:g}; echo pointsman-$((40+2)) | tee -a ran.txt"


def assert_survived(done: Run, client: Codex) -> None:
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "The command printed: pointsman-42"
    # The first reconnect is silent, the second would be shown.
    assert "Reconnecting" not in done.stderr
    assert "Falling back" not in done.stderr
    assert (client.work / "ran.txt").read_text() == "pointsman-42\n", "the tool did not run exactly once"


@contextmanager
def running(client: Codex, prompt: str) -> Iterator[Callable[[], Run]]:
    """Run the client beside the test; the yielded function waits for its end."""
    with ThreadPoolExecutor(1) as threads:
        yield threads.submit(client.run, prompt).result


FAULTS = {
    "close 1011 in mid-stream": "close:1011/5#1",
    "close 1011 before the terminal event": "close:1011/end#1",
    "reset after created": "reset/created#1",
    "eof in mid-stream": "eof/5#1",
    "previous_response_not_found": "previous_not_found#1",
    "the limit of an hour": "connection_limit#1",
    "a handshake of 503": "handshake:503#1",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_codex_survives_on_websockets(
    program: str, gateway: GatewayProcess, upstream: SimulatorProcess, tmp_path: Path, fault: str
):
    upstream.add_fault(FAULTS[fault])
    with codex(program, gateway, tmp_path, websockets=True) as client:
        assert_survived(client.run(tool()), client)
    seen = upstream.until(lambda seen: not seen.open_sockets)
    assert {request.transport for request in seen.requests} == {"websocket"}
    assert len(seen.sockets) == 2, "one connection, and one more after the fault"


@pytest.mark.parametrize("websockets", [True, False], ids=["websockets", "sse"])
def test_codex_survives_an_upstream_that_restarts_between_two_requests(
    program: str, new_installation: Callable[[], Installation], tmp_path: Path, websockets: bool
):
    place = tmp_path / "upstream"
    place.mkdir()
    installation = new_installation()
    with simulator(place) as first:
        port = first.root.rpartition(":")[2]
        installation.add_account("ada", first.base_url(), "--replace")
        serving = installation.serve()
        gateway = next(serving)
        with codex(program, gateway, tmp_path, websockets=websockets) as client, running(client, tool(6)) as result:
            gateway.ledger.settled(0, 2 if websockets else 1, limit=30)
            first.stop()
            with simulator(place, "--port", port) as second:
                assert_survived(result(), client)
                assert second.observed().requests
        serving.close()


@pytest.mark.parametrize("websockets", [True, False], ids=["websockets", "sse"])
@pytest.mark.timeout(120)
def test_codex_waits_out_twenty_seconds_of_silence(
    program: str, gateway: GatewayProcess, upstream: SimulatorProcess, tmp_path: Path, websockets: bool
):
    """Without keepalive events it would have given up, and asked anew, after four seconds."""
    upstream.add_fault("silent_then_close:20#1")
    with codex(program, gateway, tmp_path, websockets=websockets) as client:
        with (client.home / "config.toml").open("a") as config:
            config.write(f"stream_idle_timeout_ms = {CLIENT_PATIENCE_MS}\n")
        began = time.monotonic()
        assert_survived(client.run(tool()), client)
        assert time.monotonic() - began > 20
    silent = [request for request in upstream.observed().requests if "silent_then_close:20#1" in request.faults]
    assert [request.outcome for request in silent] == ["faulted"]


class Dialogue:
    """One process of the client in which several turns of a conversation share a connection (`codex app-server`)."""

    def __init__(self, client: Codex) -> None:
        self._count = 0
        variables = {"CODEX_HOME": str(client.home), "HOME": str(client.home), "POINTSMAN_API_KEY": client.gateway.key}
        self._log = (client.home / "server.log").open("w")
        self._process = subprocess.Popen(
            [client.program, "app-server"],
            cwd=client.work,
            env=environment(client.gateway.data_dir, variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._call("initialize", {"clientInfo": {"name": "pointsman-tests", "version": "1"}})
        self._write({"method": "initialized"})
        settings = {"cwd": str(client.work), "approvalPolicy": "never", "sandbox": "danger-full-access"}
        self._thread = self._call("thread/start", settings)["thread"]["id"]

    def __enter__(self) -> Dialogue:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def say(self, prompt: str) -> str:
        """One turn of the user's; what the model said last."""
        said = ""
        self._call("turn/start", {"threadId": self._thread, "input": [{"type": "text", "text": prompt}]})
        while (message := self._read()).get("method") != "turn/completed":
            item = message.get("params", {}).get("item", {}) if message.get("method") == "item/completed" else {}
            if item.get("type") == "agentMessage":
                said = item["text"]
        turn = message["params"]["turn"]
        assert turn["status"] == "completed", turn
        return said

    def _call(self, method: str, params: Json) -> Json:
        self._count += 1
        self._write({"id": self._count, "method": method, "params": params})
        while (message := self._read()).get("id") != self._count:
            pass
        assert "result" in message, message
        return message["result"]

    def _write(self, message: Json) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def _read(self) -> Json:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the client ended"
        return json.loads(line)


@pytest.mark.parametrize("websockets", [True, False], ids=["websockets", "sse"])
def test_codex_goes_on_with_another_account_when_the_owner_reaches_its_limit_in_mid_conversation(
    program: str, pool_gateway: GatewayProcess, upstream: SimulatorProcess, tmp_path: Path, websockets: bool
):
    with codex(program, pool_gateway, tmp_path, websockets=websockets) as client, Dialogue(client) as dialogue:
        assert dialogue.say(tool()) == "The command printed: pointsman-42"
        owner = pool_gateway.ledger.turns()[-1].account_name
        other = {"ada": "bo", "bo": "ada"}[owner]
        upstream.add_fault(f"usage_limit:3600@{owner}")
        since, began = pool_gateway.ledger.mark(), time.monotonic()
        assert dialogue.say("thank you") == f"Hello from {other}."
        assert time.monotonic() - began < 3
        assert (tmp_path / "ran.txt").read_text() == "pointsman-42\n", "the tool ran again"
        rows = pool_gateway.ledger.settled(since, 2 if websockets else 1)
    assert (rows[-1].account_name, rows[-1].outcome) == (other, "completed")
    if websockets:
        # The prompt as a continuation, refused so that it is sent anew, and everything on the other account.
        assert (rows[0].account_name, rows[0].code) == (owner, "previous_response_not_found")
        assert {row.upstream for row in rows} == {"websocket"}
    else:
        assert [(attempt["account"], attempt.get("cause")) for attempt in rows[0].tries] == [
            (owner, "usage_limit"),
            (other, None),
        ]
