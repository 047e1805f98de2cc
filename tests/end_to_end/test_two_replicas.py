"""Two real gateways over PostgreSQL and Redis, and an SDK whose turns land on either of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response

from gateway.simulator.observed import RequestRecord
from tests.support.postgres import temporary_database
from tests.support.processes import GatewayProcess, SimulatorProcess, run_command, simulator

REDIS = os.environ.get("TEST_REDIS_URL", "redis://127.0.0.1:6379/2")
LEASE_TTL = 4.0


@dataclass
class Pair:
    """Two gateways of one installation, at one upstream, and a conversation between them."""

    data_dir: Path
    extra: dict[str, str]
    upstream: SimulatorProcess
    ada: GatewayProcess
    bo: GatewayProcess

    def client(self, gateway: GatewayProcess) -> OpenAI:
        return OpenAI(
            base_url=f"{gateway.url}/v1",
            api_key=self.ada.key,
            max_retries=0,
            default_headers={"session-id": "one conversation"},
            http_client=httpx.Client(trust_env=False, timeout=30),
        )

    def ask(self, gateway: GatewayProcess, text: str, previous: str | None = None) -> Response:
        more: dict[str, Any] = {} if previous is None else {"previous_response_id": previous}
        with self.client(gateway) as client:
            return client.responses.create(model="gpt-5.5", input=text, store=False, **more)

    def requests(self) -> list[RequestRecord]:
        return self.upstream.observed().requests

    def restart(self) -> GatewayProcess:
        return GatewayProcess(self.data_dir, self.extra, key=self.ada.key)

    def assert_nothing_was_continued_on_a_wrong_lane(self) -> None:
        made_on = {request.response_id: request.connection for request in self.requests()}
        for request in self.requests():
            previous = None if request.body is None else request.body.previous_response_id
            if previous is not None:
                assert made_on[previous] == request.connection


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with temporary_database() as url, simulator(tmp_path, "--interval", "0.01") as upstream:
        extra = {"DATABASE_URL": url, "CELERY_BROKER_URL": REDIS, "GATEWAY_LEASE_TTL": str(LEASE_TTL)}
        migrated = run_command(tmp_path, "migrate", "--no-input", extra=extra)
        assert migrated.returncode == 0, migrated.stderr
        with serving(tmp_path, extra) as ada, serving(tmp_path, extra, key=ada.key) as bo:
            ada.add_account("eva", upstream.base_url(), "--transport", "websocket")
            bo.wait_ready()
            time.sleep(1.5)  # until each has read that the other is there, and where
            yield Pair(tmp_path, extra, upstream, ada, bo)


@contextmanager
def serving(data_dir: Path, extra: dict[str, str], key: str = "") -> Iterator[GatewayProcess]:
    process = GatewayProcess(data_dir, extra, key=key)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.stop(signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.real_client
@pytest.mark.timeout(180)
def test_a_conversation_goes_on_through_forwarding_the_owners_death_and_its_end_in_good_order(pair: Pair) -> None:
    # Forwarded: the second turn lands on the other gateway and runs on the first one's lane.
    first = pair.ask(pair.ada, "one")
    second = pair.ask(pair.bo, "two", previous=first.id)
    assert second.status == "completed"
    one, two = pair.requests()
    assert (two.connection, two.body is not None and two.body.previous_response_id) == (one.connection, first.id)

    # The owner is killed in the middle of a forwarded turn: the client is told once, and nothing runs twice.
    pair.upstream.add_fault("slow:0.2")
    with pair.client(pair.bo) as client:
        stream = client.responses.create(
            model="gpt-5.5", input="three", previous_response_id=second.id, store=False, stream=True
        )
        types = []
        for event in stream:
            types.append(event.type)
            if len(types) == 3:
                pair.ada.process.kill()
                killed_at = time.monotonic()
    assert types.count("response.failed") == 1
    assert types[-1] == "response.failed"
    pair.upstream.clear_faults()
    assert len(pair.requests()) == 3

    # Taken over: its responses are gone with their lane, the full conversation goes on here.
    with pytest.raises(openai.APIStatusError) as gone:
        pair.ask(pair.bo, "four", previous=second.id)
    assert gone.value.status_code in (400, 503)
    taken = None
    while taken is None:
        try:
            taken = pair.ask(pair.bo, "one two three four")
            last = pair.ask(pair.bo, "five", previous=taken.id)
        except openai.APIStatusError:
            taken = None
            assert time.monotonic() - killed_at < LEASE_TTL + 2
            time.sleep(0.2)
    assert time.monotonic() - killed_at < LEASE_TTL + 2
    with pytest.raises(openai.BadRequestError, match="no open upstream connection"):
        pair.ask(pair.bo, "four", previous=second.id)

    # The killed one is back: what it gets of this conversation goes to the new owner.
    ada = pair.restart()
    try:
        ada.wait_ready()
        time.sleep(1.5)
        again = pair.ask(ada, "six", previous=last.id)
        assert again.status == "completed"

        # The owner is stopped in good order while it carries a forwarded turn: that ends well, and the next moves on.
        pair.upstream.add_fault("slow:0.2")
        with pair.client(ada) as client:
            stream = client.responses.create(
                model="gpt-5.5", input="seven", previous_response_id=again.id, store=False, stream=True
            )
            events = iter(stream)
            next(events)
            pair.bo.send_signal(signal.SIGTERM)
            assert [event.type for event in events][-1] == "response.completed"
        pair.upstream.clear_faults()
        assert pair.bo.wait(20) == 0
        moved = pair.ask(ada, "all of it again")
        assert pair.ask(ada, "eight", previous=moved.id).status == "completed"
    finally:
        ada.stop()
    pair.assert_nothing_was_continued_on_a_wrong_lane()
    assert len(pair.requests()) == len({request.response_id for request in pair.requests()})


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_workers_of_one_gateway_forward_to_each_other(tmp_path: Path) -> None:
    with simulator(tmp_path, "--interval", "0.01") as upstream:
        gateway = GatewayProcess(tmp_path, {}, ("--port", "0", "--workers", "2"))
        try:
            gateway.add_account("eva", upstream.base_url(), "--transport", "websocket")
            time.sleep(2.5)
            pair = Pair(tmp_path, {}, upstream, gateway, gateway)
            response = pair.ask(gateway, "one")
            for number in range(12):
                response = pair.ask(gateway, str(number), previous=response.id)
            assert len({request.connection for request in pair.requests()}) == 1
        finally:
            gateway.stop()
