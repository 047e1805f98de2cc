"""Several processes on one socket."""

from __future__ import annotations

import http.client
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.processes import GatewayProcess


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


@pytest.fixture
def gateway(tmp_path):
    process = GatewayProcess(tmp_path, {}, ("--port", "0", "--workers", "2"))
    yield process
    process.stop()


@pytest.mark.xdist_group("processes")
def test_a_worker_that_dies_is_replaced_and_nobody_is_refused(gateway):
    before = children(gateway)
    assert len(before) == 2
    os.kill(min(before), signal.SIGKILL)
    wait_until(lambda: len(children(gateway) - before) == 1, "no worker took the dead one's place")
    assert all(is_alive(gateway.url) for _ in range(10))
    assert re.search("worker_died", gateway.output())


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
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


def test_two_signals_end_the_gateway_at_once(gateway):
    gateway.process.send_signal(signal.SIGTERM)
    gateway.process.send_signal(signal.SIGTERM)
    assert gateway.process.wait(10) == 0
