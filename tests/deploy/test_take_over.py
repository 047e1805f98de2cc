"""The Codex CLI behind nginx, as it is deployed, when the gateway that has its conversation is killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import psycopg
import pytest

from tests.deploy.nginx import nginx
from tests.end_to_end.codex import codex
from tests.support.optional import require_program
from tests.support.postgres import temporary_database
from tests.support.processes import GatewayProcess, SimulatorProcess, run_command, simulator

pytestmark = [pytest.mark.slow, pytest.mark.real_client, pytest.mark.timeout(240)]

LEASE_TTL = 6.0
# For so long nginx leaves a gateway alone that refused a connection, by deploy/nginx.conf.
PASSED_OVER = 5.0
HELLO = "Hello from eva."
TOOL = "run: touch begun; sleep 2; echo pointsman-$((40+2)) | tee -a ran.txt"


@dataclass
class Front:
    """Two gateways on one PostgreSQL database behind nginx, and what can be seen of them."""

    url: str
    database: str
    data_dir: Path
    upstream: SimulatorProcess
    gateways: list[GatewayProcess]

    def owner(self) -> GatewayProcess:
        """The gateway that carries, or carried, the newest turn."""
        newest = "SELECT r.process FROM gateway_turn t JOIN gateway_replica r ON r.id = t.replica"
        (pid,) = self.query(f"{newest} ORDER BY t.received_at DESC LIMIT 1")[0]
        return next(gateway for gateway in self.gateways if gateway.process.pid == pid)

    def query(self, statement: str) -> list[tuple[int, ...]]:
        with psycopg.connect(self.database.replace("postgres://", "postgresql://", 1)) as connection:
            return connection.execute(statement).fetchall()

    def forwarded(self) -> int:
        """How many turns one gateway has handed to the other."""
        return self.query("SELECT COUNT(*) FROM gateway_turn WHERE via IS NOT NULL")[0][0]

    def kill_owner(self) -> float:
        """Kill it, and say when; what runs on it at the upstream is lost."""
        self.owner().process.kill()
        return time.time()

    def restart_the_dead(self) -> None:
        """On the port where nginx looks for it, and until nginx looks there again."""
        (dead,) = [gateway for gateway in self.gateways if gateway.process.poll() is not None]
        back = GatewayProcess(self.data_dir, dead.extra, ("--port", str(dead.port)), key=dead.key)
        self.gateways[self.gateways.index(dead)] = back
        back.wait_ready()
        time.sleep(PASSED_OVER)

    def carried_on_after(self, moment: float) -> float:
        """Seconds from then until the next request reached the upstream."""
        return min(r.started_at for r in self.upstream.observed().requests if r.started_at > moment) - moment

    def assert_nothing_was_continued_on_a_wrong_lane(self) -> int:
        """How many requests continued another one; each on the connection on which that one was made."""
        requests = self.upstream.observed().requests
        made_on = {request.response_id: (request.transport, request.connection) for request in requests}
        continued = [request for request in requests if request.body and request.body.previous_response_id]
        for request in continued:
            assert request.body is not None
            assert made_on[request.body.previous_response_id] == (request.transport, request.connection)
        return len(continued)


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    program = require_program("nginx")
    with ExitStack() as stack:
        database = stack.enter_context(temporary_database())
        upstream = stack.enter_context(simulator(tmp_path, "--interval", "0.01"))
        extra = {"DATABASE_URL": database, "GATEWAY_LEASE_TTL": str(LEASE_TTL)}
        assert run_command(tmp_path, "migrate", "--no-input", extra=extra).returncode == 0
        gateways: list[GatewayProcess] = []
        stack.callback(lambda: [gateway.stop() for gateway in gateways])
        for _ in range(2):
            gateways.append(GatewayProcess(tmp_path, extra, key=gateways[0].key if gateways else ""))
        gateways[0].add_account("eva", upstream.base_url(), "--transport", "websocket")
        gateways[1].wait_ready()
        url = stack.enter_context(nginx(program, tmp_path, [gateway.port for gateway in gateways]))
        yield Front(url, database, tmp_path, upstream, gateways)


@pytest.mark.parametrize("websockets", [True, False], ids=["websockets", "sse"])
def test_codex_carries_on_at_the_other_gateway_when_its_own_is_killed(
    front: Front, tmp_path: Path, websockets: bool
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with (
        codex(require_program("codex"), front.gateways[0], work, websockets=websockets, url=front.url) as client,
        ThreadPoolExecutor(1) as beside,
    ):
        # Killed while the client runs a tool: what it says next is carried by the other gateway.
        working = beside.submit(client.run, TOOL)
        wait_for((work / "begun").exists, working)
        killed_at = front.kill_owner()
        assert answer_of(working.result()) == "The command printed: pointsman-42"
        assert front.carried_on_after(killed_at) < LEASE_TTL, "the tool takes two seconds of it"

        # Once the dead one's time is over the other owns the conversation, also when nginx asks the one that is back.
        wait_until(killed_at + LEASE_TTL)
        assert answer_of(client.resume("thank you")) == HELLO
        front.restart_the_dead()
        assert answer_of(client.resume("are you still there")) == HELLO
        assert front.forwarded() == (0 if websockets else 1)

        # Killed in the middle of an answer, a forwarded one where it can be.
        seen = len(front.upstream.observed().requests)
        front.upstream.add_fault("slow:0.3")
        answering = beside.submit(client.resume, "say it again")
        wait_for(lambda: said_something(front.upstream, seen), answering)
        killed_at = front.kill_owner()
        front.upstream.clear_faults()
        assert answer_of(answering.result()) == HELLO
        late = front.carried_on_after(killed_at)
        assert late < LEASE_TTL

        wait_until(killed_at + LEASE_TTL)
        before = front.assert_nothing_was_continued_on_a_wrong_lane()
        assert [answer_of(client.resume(text)) for text in ("go on", "good bye")] == [HELLO] * 2
    assert (work / "ran.txt").read_text() == "pointsman-42\n", "the tool did not run exactly once"
    after = front.assert_nothing_was_continued_on_a_wrong_lane()
    assert after > before, "the new owner continues what it has begun"
    # Claimed by the first, by the other, and by the first when it was back; a client's own lanes need no lease.
    assert front.query("SELECT epoch FROM gateway_lease") == ([] if websockets else [(3,)])
    print(f"carried on {late:.2f} s after a kill; {after} of {len(front.upstream.observed().requests)} continuations")


def said_something(upstream: SimulatorProcess, seen: int) -> bool:
    """Whether a request that came after so many others has begun to be answered with more than its first event."""
    return any(
        request.running and request.events_sent >= 3 and request.body is not None and request.body.generate is not False
        for request in upstream.observed().requests[seen:]
    )


def wait_for(condition: Callable[[], bool], client: Future[CompletedProcess[str]]) -> None:
    """Wait for it while the client runs."""
    deadline = time.monotonic() + 20
    while not condition():
        assert not client.done(), client.result().stderr
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_until(moment: float) -> None:
    """Until the unix time `moment`, and until a gateway has looked at the others once more."""
    time.sleep(max(0.0, moment + 1.5 - time.time()))


def answer_of(done: CompletedProcess[str]) -> str:
    """What the client printed; it must have ended well."""
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
