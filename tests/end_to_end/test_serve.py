"""`manage.py serve` as its operator meets it: the first start, the second, the ones that fail, and the end."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from socket import create_server

import httpx
import pytest
from cryptography.fernet import Fernet
from websockets.asyncio.client import ClientConnection

from tests.end_to_end.clients import (
    CODEX,
    V1,
    Json,
    body,
    frame,
    http_client,
    post,
    read_turn,
    socket,
    sse,
    turn,
    until_closed,
)
from tests.support.ledger import TurnRow
from tests.support.processes import GatewayProcess, Installation, SimulatorProcess, run_command
from tests.support.processes import gateway as running

SECRETS = ("secret_key", "token_keys")
HOSTILE_PROXIES = dict.fromkeys(
    ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9"
)


@pytest.fixture(scope="module")
def first_start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with running(tmp_path_factory.mktemp("first")) as gateway:
        yield gateway


# The start


def test_the_first_start_prints_everything_its_operator_needs(first_start: GatewayProcess):
    output = first_start.wait_for(r"No account yet(.|\n)*add_account NAME --kind openai").string
    assert re.search(rf"admin +{first_start.url}/admin/ +user admin, password \S{{12,}}\n", output)
    assert re.search(r"API key +pm_[0-9a-f]{10}_\S{32,}\n", output)
    assert f'base_url = "{first_start.url}/backend-api/codex"' in output
    assert 'env_key = "POINTSMAN_API_KEY"' in output
    assert "supports_websockets = true" in output
    assert f"export POINTSMAN_API_KEY={first_start.key}" in output


def test_secrets_are_files_that_only_their_owner_can_read(first_start: GatewayProcess):
    for name in SECRETS:
        assert stat.S_IMODE((first_start.data_dir / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(first_start.data_dir.stat().st_mode) & 0o077 == 0


async def test_the_printed_password_opens_the_admin(first_start: GatewayProcess):
    password = first_start.wait_for(r"password (\S+)").group(1)
    async with httpx.AsyncClient(base_url=first_start.url, trust_env=False) as browser:
        await browser.get("/admin/login/")
        answer = await browser.post(
            "/admin/login/",
            data={"username": "admin", "password": password, "csrfmiddlewaretoken": browser.cookies["csrftoken"]},
        )
    assert answer.status_code == 302
    assert "sessionid" in browser.cookies


async def test_readyz_leaves_every_lock_on_the_database_where_it_is(first_start: GatewayProcess):
    async with http_client(first_start) as client:
        for _ in range(2):
            await client.get("/readyz")
    path = first_start.data_dir / "pointsman.sqlite3"
    # Only who is alone with the database may do this.
    with closing(sqlite3.connect(path, timeout=0)) as other, pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("PRAGMA journal_mode=DELETE")


async def test_the_printed_key_is_known_and_readyz_says_that_an_account_is_missing(first_start: GatewayProcess):
    answer = await post(first_start, body())
    assert answer.json()["error"]["code"] == "no_accounts"
    async with http_client(first_start) as client:
        readiness = await client.get("/readyz")
    checks = readiness.json()["checks"]
    assert readiness.status_code == 503
    assert checks.pop("accounts") == "no account is usable"
    assert set(checks.values()) == {"ok"}


def test_a_second_start_prints_no_secret(ending: Ending):
    installation = ending.installation
    assert installation.key not in ending.output
    assert installation.password not in ending.output
    for name in SECRETS:
        for line in (installation.data_dir / name).read_text().split():
            assert line not in ending.output


# Starts that fail


def refused_start(installation: Installation, *arguments: str, **extra: str) -> str:
    """The one sentence that a start which fails says, on standard error."""
    done = run_command(installation.data_dir, "serve", *(arguments or ("--port", "0")), extra=extra)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    sentence = line.removeprefix("CommandError: ")
    assert sentence.endswith(".")
    return sentence


@pytest.mark.parametrize("value", ["soon", "-1"])
def test_a_setting_that_cannot_work_stops_the_start_with_its_name(template: Installation, value: str):
    sentence = refused_start(template, GATEWAY_CONNECT_TIMEOUT=value)
    assert "GATEWAY_CONNECT_TIMEOUT" in sentence


def test_workers_do_not_share_a_socket_that_is_inherited(template: Installation):
    failed = run_command(template.data_dir, "serve", "--fd", "3", "--workers", "2")
    assert failed.returncode != 0
    assert "leave out --fd" in failed.stderr


def test_a_taken_port_stops_the_start_with_its_number(template: Installation, first_start: GatewayProcess):
    sentence = refused_start(template, "--port", str(first_start.port))
    assert str(first_start.port) in sentence


def test_a_wrong_token_key_stops_the_start_and_names_an_account(furnished: Installation, tmp_path: Path):
    installation = furnished.copy(tmp_path / "data")
    (installation.data_dir / "token_keys").write_text(Fernet.generate_key().decode() + "\n")
    assert "ada" in refused_start(installation)


def test_an_empty_secret_file_stops_the_start(template: Installation, tmp_path: Path):
    installation = template.copy(tmp_path / "data")
    (installation.data_dir / "secret_key").write_text("")
    assert "secret_key" in refused_start(installation)


# The health check


def test_the_health_check_asks_the_gateway_itself_whatever_proxies_there_are(first_start: GatewayProcess):
    port = ("--port", str(first_start.port))
    alive = run_command(first_start.data_dir, "healthcheck", *port, extra=HOSTILE_PROXIES)
    assert alive.returncode == 0, alive.stderr
    ready = run_command(first_start.data_dir, "healthcheck", *port, "--ready", extra=HOSTILE_PROXIES)
    assert ready.returncode == 1
    assert "no account is usable" in ready.stderr


def test_the_health_check_of_a_gateway_that_is_not_there_is_1(template: Installation, unused_port: int):
    done = run_command(template.data_dir, "healthcheck", extra={"PORT": str(unused_port), **HOSTILE_PROXIES})
    assert done.returncode == 1
    assert str(unused_port) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def unused_port() -> int:
    with create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


# The end


@dataclass(frozen=True)
class Ending:
    """What several clients saw of one shutdown that began while two turns were streaming."""

    installation: Installation
    streamed: list[Json]
    socket_streamed: list[Json]
    socket_closed: int | None
    idle_closed: list[int | None]
    idle_closed_first: bool
    readiness: httpx.Response
    refused: list[httpx.Response]
    exit_code: int
    rows: list[TurnRow]
    output: str


@pytest.fixture(scope="module")
def ending(new_installation: Callable[[], Installation], simulator_process: SimulatorProcess) -> Ending:
    simulator_process.clear_faults()
    installation = new_installation()
    with running(installation.data_dir, key=installation.key) as gateway:
        return asyncio.run(end(installation, gateway))


async def end(installation: Installation, gateway: GatewayProcess) -> Ending:
    async with AsyncExitStack() as stack:
        streaming, probe, *others = [await stack.enter_async_context(http_client(gateway)) for _ in range(4)]
        for client in (probe, *others):
            await client.get("/healthz")  # from now on it has a connection
        busy, used, fresh = [await stack.enter_async_context(socket(gateway)) for _ in range(3)]
        await turn(used, frame())
        await busy.send(frame(**PACED))
        await busy.recv()
        answer = await stack.enter_async_context(streaming.stream("POST", CODEX, json=body(**PACED)))
        chunks = answer.aiter_bytes()
        received = await anext(chunks)
        gateway.send_signal()
        idle = [asyncio.ensure_future(closed(connection)) for connection in (used, fresh)]
        readiness = await until_stopping(probe)
        refused = [await client.post(path, json=body()) for client, path in zip(others, (CODEX, V1), strict=True)]
        received += b"".join([chunk async for chunk in chunks])
        socket_streamed = await read_turn(busy)
        idle_closed_first = all(each.done() for each in idle)
        return Ending(
            installation=installation,
            streamed=sse(received),
            socket_streamed=socket_streamed,
            socket_closed=await closed(busy),
            idle_closed=[await each for each in idle],
            idle_closed_first=idle_closed_first,
            readiness=readiness,
            refused=refused,
            exit_code=await asyncio.to_thread(gateway.wait),
            rows=gateway.ledger.turns(),
            output=gateway.output(),
        )


PACED = {"metadata": {"sim_events": "20", "sim_interval": "0.05"}}


async def closed(connection: ClientConnection) -> int | None:
    """The code with which the gateway closes a socket on which nothing more comes."""
    async with asyncio.timeout(5):
        events, code = await until_closed(connection)
    assert events == []
    return code


async def until_stopping(client: httpx.AsyncClient) -> httpx.Response:
    """Ask `/readyz`, on a connection that is open already, until it says that the gateway is stopping."""
    async with asyncio.timeout(5):
        while (answer := await client.get("/readyz")).json()["checks"]["running"] == "ok":
            await asyncio.sleep(0.01)
    return answer


def test_turns_that_stream_are_finished_before_the_process_ends(ending: Ending):
    for events in (ending.streamed, ending.socket_streamed):
        assert events[-1]["type"] == "response.completed"
        assert len([event for event in events if event["type"] == "response.output_text.delta"]) == 20
    assert [row.outcome for row in ending.rows if row.sent_ms is not None] == ["completed"] * 3
    assert ending.exit_code == 0


def test_new_turns_are_told_to_come_back(ending: Ending):
    for answer in ending.refused:
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "gateway_stopping")
        assert 1 <= int(answer.headers["retry-after"]) <= 60


def test_readyz_says_that_the_gateway_is_stopping(ending: Ending):
    assert ending.readiness.status_code == 503
    checks = ending.readiness.json()["checks"]
    assert {name for name, said in checks.items() if said != "ok"} == {"running"}
    assert checks["running"] == "the gateway is stopping"


def test_idle_websockets_are_closed_with_1012_at_once(ending: Ending):
    assert ending.idle_closed == [1012, 1012]
    assert ending.idle_closed_first


def test_a_websocket_is_closed_with_1012_after_its_turn(ending: Ending):
    assert ending.socket_closed == 1012


def test_a_good_end_leaves_no_complaint_in_the_output(ending: Ending):
    logged = [json.loads(line) for line in ending.output.splitlines() if line.startswith("{")]
    assert [line for line in logged if line.get("level") not in ("debug", "info")] == []
    assert "Traceback" not in ending.output


async def asked(gateway: GatewayProcess, upstream: SimulatorProcess) -> asyncio.Task[httpx.Response]:
    """A request that has reached the upstream and gets no answer there."""
    asking = asyncio.ensure_future(post(gateway, body()))
    arriving = asyncio.ensure_future(asyncio.to_thread(upstream.until, lambda seen: seen.running))
    await asyncio.wait({asking, arriving}, return_when=asyncio.FIRST_COMPLETED)
    assert not asking.done(), asking.result().text
    await arriving
    return asking


@pytest.mark.slow
async def test_a_turn_that_does_not_end_is_ended_and_told_so(
    new_installation: Callable[[], Installation], upstream: SimulatorProcess
):
    upstream.add_fault("silent")
    for gateway in new_installation().serve(GATEWAY_DRAIN_TIMEOUT="0.3"):
        since = gateway.ledger.mark()
        asking = await asked(gateway, upstream)
        gateway.send_signal()
        answer = await asking
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "gateway_stopping")
        assert await asyncio.to_thread(gateway.wait) == 0
        (row,) = gateway.ledger.settled(since)
        assert row.code == "gateway_stopping"


@pytest.mark.slow
async def test_a_gateway_that_was_killed_leaves_no_turn_open_after_its_next_start(
    new_installation: Callable[[], Installation], upstream: SimulatorProcess
):
    installation = new_installation()
    upstream.add_fault("silent")
    for gateway in installation.serve():
        asking = await asked(gateway, upstream)
        gateway.process.kill()
        with pytest.raises(httpx.HTTPError):
            await asking
    for gateway in installation.serve():
        (row,) = gateway.ledger.settled(0)
        assert row.outcome == "interrupted"
