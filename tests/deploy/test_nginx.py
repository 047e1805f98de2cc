"""nginx, as it is deployed, in front of two real gateways."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

from tests.deploy.nginx import nginx
from tests.support.optional import require_program
from tests.support.processes import GatewayProcess, Installation, SimulatorProcess
from tests.support.records import HELLO

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

# Bytes of an event; five of them are more than the sockets between upstream and client hold.
LARGE = 8_000_000
PATH = "/backend-api/codex/responses"


@dataclass
class Front:
    """nginx and the gateways behind it, each with a ledger of its own."""

    url: str
    gateways: tuple[GatewayProcess, GatewayProcess]

    @property
    def headers(self) -> dict[str, str]:
        return self.gateways[0].headers

    def post(self, session: str = "", body: object = HELLO, **headers: str) -> httpx.Response:
        named = {"session-id": session} if session else {}
        with httpx.Client(trust_env=False, timeout=30) as client:
            return client.post(self.url + PATH, json=body, headers={**self.headers, **named, **headers})

    def turns(self) -> list[int]:
        """How many turns each gateway has carried."""
        return [len(gateway.ledger.turns()) for gateway in self.gateways]

    def settled(self, turns: int) -> list[int]:
        """The same, once all of so many are written."""
        deadline = time.monotonic() + 10
        while sum(counted := self.turns()) < turns:
            assert time.monotonic() < deadline, counted
            time.sleep(0.05)
        return counted


@pytest.fixture
def front(upstream: SimulatorProcess, new_installation: Callable[[], Installation], tmp_path: Path) -> Iterator[Front]:
    program = require_program("nginx")
    installation = new_installation()
    with ExitStack() as stack:
        gateways = [
            stack.enter_context(serving(each)) for each in (installation, installation.copy(tmp_path / "second"))
        ]
        for gateway in gateways:
            gateway.wait_ready()
        url = stack.enter_context(nginx(program, tmp_path, [gateway.port for gateway in gateways]))
        yield Front(url, (gateways[0], gateways[1]))


@contextmanager
def serving(installation: Installation) -> Iterator[GatewayProcess]:
    yield from installation.serve()


def test_events_of_a_stream_come_as_they_are_made(front: Front, upstream: SimulatorProcess) -> None:
    upstream.add_fault("slow:0.1#1")
    arrived: list[float] = []
    with (
        httpx.Client(trust_env=False, timeout=30) as client,
        client.stream("POST", front.url + PATH, json=HELLO, headers=front.headers) as answer,
    ):
        assert answer.status_code == 200
        arrived += [time.monotonic() for line in answer.iter_lines() if line.startswith("data: ")]
    assert len(arrived) > 5
    assert arrived[-1] - arrived[0] > 0.1 * (len(arrived) - 1) / 2


def test_a_client_that_reads_nothing_holds_its_answer_back_and_then_has_all_of_it(
    front: Front, upstream: SimulatorProcess
) -> None:
    """nginx keeps no answers of its own, so the gateway's limits on clients that are behind mean the clients."""
    upstream.add_fault(*(f"big_event:{LARGE}/{place}#1" for place in (4, 5, 6, 7, 8)))
    body = json.dumps(HELLO).encode()
    head = [f"POST {PATH} HTTP/1.1", "host: gateway", f"content-length: {len(body)}", "connection: close"]
    head += [f"{name}: {value}" for name, value in front.headers.items()]
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        client.settimeout(30)
        client.connect(("127.0.0.1", int(front.url.rpartition(":")[2])))
        client.sendall("\r\n".join([*head, "", ""]).encode() + body)
        upstream.until(lambda seen: seen.running and seen.requests[0].events_sent >= 4)
        time.sleep(3)
        assert upstream.observed().running, "somebody took the answer in the client's place"
        taken, last = 0, b""
        while chunk := client.recv(1 << 20):
            taken, last = taken + len(chunk), (last + chunk)[-2000:]
    assert taken > 5 * LARGE
    assert b"response.completed" in last


def test_a_websocket_is_upgraded_and_its_frames_come_as_they_are_made(front: Front, upstream: SimulatorProcess) -> None:
    upstream.add_fault("slow:0.1#1")
    arrived: list[float] = []
    url = front.url.replace("http", "ws", 1) + PATH
    with connect(url, additional_headers=front.headers, proxy=None) as opened:
        for turn in range(2):
            opened.send(json.dumps({"type": "response.create", **HELLO}))
            while json.loads(opened.recv(30))["type"] != "response.completed":
                if turn == 0:
                    arrived.append(time.monotonic())
    assert arrived[-1] - arrived[0] > 0.1 * (len(arrived) - 1) / 2


def test_a_conversation_stays_on_one_gateway_and_conversations_are_spread(front: Front) -> None:
    counts = [0, 0]
    for number in range(12):
        for _ in range(2):
            assert front.post(f"session-{number}").status_code == 200
        now = front.settled(2 * (number + 1))
        assert sorted(now[place] - counts[place] for place in (0, 1)) == [0, 2], "both turns on one gateway"
        counts = now
    assert min(counts) > 0


def test_the_older_name_of_the_header_counts_as_well(front: Front) -> None:
    for number in range(4):
        before = front.turns()
        front.post(f"s-{number}")
        front.post(session_id=f"s-{number}")
        after = front.settled(sum(before) + 2)
        assert 0 in (after[0] - before[0], after[1] - before[1])


def test_a_gateway_that_died_is_passed_over(front: Front) -> None:
    dead, alive = front.gateways
    dead.stop(signal.SIGKILL)
    assert [front.post(f"session-{number}").status_code for number in range(8)] == [200] * 8
    url = front.url.replace("http", "ws", 1) + PATH
    for number in range(4):
        named = {**front.headers, "session-id": f"session-{number}"}
        with connect(url, additional_headers=named, proxy=None) as opened:
            opened.send(json.dumps({"type": "response.create", **HELLO}))
            while json.loads(opened.recv(30))["type"] != "response.completed":
                pass
    assert alive.process.poll() is None


def test_large_bodies_and_large_headers_pass(front: Front) -> None:
    content = [{"type": "input_text", "text": "a" * 20_000_000}]
    body = {**HELLO, "input": [{"type": "message", "role": "user", "content": content}]}
    metadata = {"x-codex-turn-metadata": "m" * 40_000}
    assert front.post(body=body, **metadata).status_code == 200
