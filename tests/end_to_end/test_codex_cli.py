"""The main job: a Codex CLI holds a conversation with a tool through the gateway, on WebSockets and on SSE."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.end_to_end.codex import Codex, codex
from tests.support.ledger import TurnRow
from tests.support.optional import require_program
from tests.support.processes import GatewayProcess, Installation, Observations, SimulatorProcess

pytestmark = pytest.mark.real_client

COMMAND = "echo pointsman-$((40+2)) | tee -a ran.txt"


@pytest.fixture(scope="module")
def program() -> str:
    return require_program("codex")


@pytest.fixture(scope="module")
def gateway(program: str, new_installation: Callable[[], Installation]) -> Iterator[GatewayProcess]:
    yield from new_installation().serve()


@pytest.fixture
def mark(gateway: GatewayProcess, upstream: SimulatorProcess) -> int:
    return gateway.ledger.mark()


def converse(client: Codex) -> None:
    """A turn that uses a tool, then a second process that goes on with the same conversation."""
    first = client.run(f"run: {COMMAND}")
    assert first.returncode == 0, first.stderr
    assert first.stdout.strip() == "The command printed: pointsman-42"
    second = client.resume("thank you")
    assert second.returncode == 0, second.stderr
    assert second.stdout.strip() == "Hello from ada."
    for done in (first, second):
        assert "Reconnecting" not in done.stderr
        assert "Falling back" not in done.stderr
    assert (client.work / "ran.txt").read_text() == "pointsman-42\n", "the tool did not run exactly once"


def completed(gateway: GatewayProcess, mark: int, count: int) -> list[TurnRow]:
    """Every turn in the ledger; each was tried once and completed."""
    rows = gateway.ledger.settled(mark, count)
    assert [(row.outcome, row.cause, len(row.tries)) for row in rows] == [("completed", "", 1)] * count
    return rows


def test_codex_holds_a_conversation_with_a_tool_on_websockets(
    program: str, gateway: GatewayProcess, upstream: SimulatorProcess, mark: int, tmp_path: Path
):
    with codex(program, gateway, tmp_path, websockets=True) as client:
        converse(client)
    # A prewarm, the prompt and the tool's output; then, in a process of its own, a prewarm and the prompt.
    rows = completed(gateway, mark, 5)
    assert {(row.route, row.downstream, row.upstream) for row in rows} == {("codex", "websocket", "websocket")}
    assert [bool(row.generated) for row in rows] == [False, True, True, False, True]
    seen = upstream.until(lambda seen: not seen.open_sockets)
    assert {request.transport for request in seen.requests} == {"websocket"}
    assert_continued_on_its_connection(seen)


def assert_continued_on_its_connection(seen: Observations) -> None:
    """Each process had one upstream connection, and every turn but the first continued the one before it there."""
    first, second = seen.sockets
    assert (first.status, first.requests) == (101, 3)
    assert (second.status, second.requests) == (101, 2)
    for socket in (first, second):
        requests = [request for request in seen.requests if request.connection == socket.connection]
        assert len(requests) == socket.requests
        previous = [None, *(request.response_id for request in requests[:-1])]
        assert [request.body and request.body.previous_response_id for request in requests] == previous
    tool = seen.requests[2].body
    assert tool is not None
    assert tool.input_types == {"function_call_output": 1}


def test_codex_holds_a_conversation_with_a_tool_on_sse(
    program: str, gateway: GatewayProcess, upstream: SimulatorProcess, mark: int, tmp_path: Path
):
    with codex(program, gateway, tmp_path, websockets=False) as client:
        converse(client)
    # The prompt and the tool's output; then the prompt of the second process. Each carries the whole conversation.
    rows = completed(gateway, mark, 3)
    assert {(row.route, row.downstream, row.upstream) for row in rows} == {("codex", "sse", "http")}
    seen = upstream.observed()
    assert [request.transport for request in seen.requests] == ["http"] * 3
    assert not seen.sockets
    lengths = [request.body.input_length for request in seen.requests if request.body is not None]
    assert lengths == sorted(lengths)
    assert len(set(lengths)) == 3


def test_codex_shows_its_user_why_it_was_refused(
    program: str, gateway: GatewayProcess, upstream: SimulatorProcess, tmp_path: Path
):
    upstream.add_fault("error_frame:400:context_length_exceeded~websocket")
    with codex(program, gateway, tmp_path, websockets=True) as client:
        refused = client.run("hello")
    assert refused.returncode != 0
    assert "context window" in refused.stderr


@pytest.mark.parametrize("websockets", [True, False], ids=["websockets", "sse"])
def test_codex_waits_out_a_rate_limit_of_a_second(
    program: str, gateway: GatewayProcess, upstream: SimulatorProcess, tmp_path: Path, websockets: bool
):
    upstream.add_fault("rate_limit:1#1")
    with codex(program, gateway, tmp_path, websockets=websockets) as client:
        answered = client.run("hello")
    assert answered.returncode == 0, answered.stderr
    assert answered.stdout.strip() == "Hello from ada."
