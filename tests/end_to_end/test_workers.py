"""Several processes on one socket."""

from __future__ import annotations

import http.client
import os
import re
import signal
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import pytest

from tests.support.processes import GatewayProcess, simulator

pytestmark = pytest.mark.slow


def children(gateway: GatewayProcess) -> set[int]:
    """The worker processes that run now."""
    path = f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children"
    with open(path) as file:
        return {int(pid) for pid in file.read().split()}


def wait_until(condition, what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def is_alive(url: str) -> bool:
    """Ask on a connection of its own, as a client that reconnects does."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    finally:
        connection.close()


WORKERS = ("--port", "0", "--workers", "2")


@pytest.fixture
def gateway(new_installation):
    installation = new_installation()
    process = GatewayProcess(installation.data_dir, {}, WORKERS, key=installation.key)
    yield process
    process.stop()


@pytest.fixture
def upstream(tmp_path):
    with simulator(tmp_path) as process:
        yield process


@pytest.fixture
def pooled(new_installation, upstream):
    """A gateway whose account was there before its workers, so that each of them knows it."""
    installation = new_installation()
    installation.add_account("eva", upstream.base_url(), "--transport", "websocket")
    process = GatewayProcess(installation.data_dir, {}, WORKERS, key=installation.key)
    yield process
    process.stop()


def test_a_worker_that_dies_is_replaced_and_nobody_is_refused(gateway):
    before = children(gateway)
    assert len(before) == 2
    os.kill(min(before), signal.SIGKILL)
    wait_until(lambda: len(children(gateway) - before) == 1, "no worker took the dead one's place")
    assert all(is_alive(gateway.url) for _ in range(10))
    assert re.search("worker_died", gateway.output())


@pytest.mark.timeout(120)
def test_the_turns_and_conversations_of_a_worker_that_dies_are_taken_care_of_at_once(pooled, upstream):
    body = {"model": "gpt-5.5", "input": "hi", "store": False, "stream": True}
    named = {**pooled.headers, "session-id": "a conversation"}
    with httpx.Client(trust_env=False, timeout=20) as client:
        url = f"{pooled.url}/v1/responses"
        assert client.post(url, json=body, headers=named).status_code == 200
        upstream.add_fault("slow:0.2")
        with client.stream("POST", url, json=body, headers=named) as answer:
            lines = answer.iter_lines()
            next(lines)
            turn = next(turn for turn in pooled.ledger.turns() if not turn.outcome)
            ((owner, worker),) = rows(pooled, LEASES)
            assert owner == turn.replica
            os.kill(worker, signal.SIGKILL)
            killed_at = time.monotonic()
        wait_until(lambda: pooled.ledger.turns()[1].outcome == "interrupted", "the turn is open")
        # Long before its heartbeat is old, which is what tells others elsewhere.
        assert time.monotonic() - killed_at < 2
        assert rows(pooled, "SELECT owner, epoch FROM gateway_lease") == [(None, 1)]


LEASES = "SELECT l.owner, r.process FROM gateway_lease l JOIN gateway_replica r ON r.id = l.owner"


def rows(gateway, statement: str) -> list[tuple]:
    with closing(sqlite3.connect(f"file:{gateway.data_dir}/pointsman.sqlite3?mode=ro", uri=True)) as connection:
        return connection.execute(statement).fetchall()


def test_clients_that_connect_while_all_workers_are_replaced_all_succeed(gateway):
    before = children(gateway)
    with ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(is_alive, gateway.url) for _ in range(50)]
        gateway.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 50
        while not children(gateway).isdisjoint(before) or len(children(gateway)) < 2:
            asked += [pool.submit(is_alive, gateway.url) for _ in range(20)]
            time.sleep(0.2)
            assert time.monotonic() < deadline, "the workers were not replaced"
        assert all(answer.result() for answer in asked)
    assert len(asked) >= 200


@pytest.mark.timeout(120)
def test_clients_that_keep_their_connections_are_refused_nothing_while_all_workers_are_replaced(pooled, upstream):
    url, body = f"{pooled.url}/v1/responses", {"model": "gpt-5.5", "input": "hi", "store": False, "stream": True}
    before, done = children(pooled), threading.Event()

    def ask_on_and_on() -> set[int]:
        statuses = set()
        with httpx.Client(trust_env=False, timeout=30) as client:
            while not done.wait(0.1):
                statuses.add(client.post(url, json=body, headers=pooled.headers).status_code)
        return statuses

    with ThreadPoolExecutor(6) as pool, httpx.Client(trust_env=False, timeout=30) as client:
        # A turn that goes on for long holds its worker, which must not refuse others for as long.
        upstream.add_fault("slow:0.5")
        with client.stream("POST", url, json=body, headers=pooled.headers) as answer:
            lines = answer.iter_lines()
            next(lines)
            askers = [pool.submit(ask_on_and_on) for _ in range(5)]
            pooled.process.send_signal(signal.SIGHUP)
            assert any("response.completed" in line for line in lines)
        wait_until(lambda: children(pooled).isdisjoint(before) and len(children(pooled)) == 2, "not replaced")
        done.set()
        assert [asker.result() for asker in askers] == [{200}] * 5


def test_two_signals_end_the_gateway_at_once(gateway):
    gateway.process.send_signal(signal.SIGTERM)
    gateway.process.send_signal(signal.SIGTERM)
    assert gateway.process.wait(10) == 0
