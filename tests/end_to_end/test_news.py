"""What changes in one process, every other one heeds within two seconds, by what its clients are answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.support.postgres import temporary_database
from tests.support.processes import GatewayProcess, SimulatorProcess, run_command, simulator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

WITHIN = 2.0
# What a client can be told: which account carried its turn, or that its key is none.
EVA, FAY, NO_KEY = "Hello from eva.", "Hello from fay.", "invalid_api_key"


@dataclass
class Place:
    """One process, by a client's connection that stays with it."""

    client: httpx.Client
    url: str
    headers: dict[str, str]

    def ask(self) -> str:
        """The answer's text, or the code of the error."""
        body = {"model": "gpt-5.5", "input": "hi", "store": False}
        told = self.client.post(f"{self.url}/v1/responses", json=body, headers=self.headers).json()
        return str(told["error"]["code"] if told.get("error") else told["output"][0]["content"][0]["text"])


class Admin:
    """An operator's browser at one of the processes."""

    def __init__(self, url: str, password: str) -> None:
        self._client = httpx.Client(base_url=url, trust_env=False, timeout=20)
        self._client.get("/admin/login/")
        assert self._post("/admin/login/", username="admin", password=password).status_code == 302

    def act(self, table: str, action: str) -> None:
        """Do an action of a table's page to the row with the id 1."""
        done = self._post(f"/admin/{table}/", action=action, _selected_action="1")
        assert done.status_code == 302
        assert "messages" in done.cookies or "messages" in self._client.cookies, "nothing was said about it"

    def _post(self, path: str, **data: str) -> httpx.Response:
        token = self._client.cookies["csrftoken"]
        return self._client.post(path, data={**data, "csrfmiddlewaretoken": token})

    def close(self) -> None:
        self._client.close()


@dataclass
class Scene:
    """Two processes of one installation, and its operator. Its account fay is there for what eva does not take."""

    upstream: SimulatorProcess
    admin: Admin
    places: list[Place]

    def heeded_after(self, change: Callable[[], None], new: str) -> float:
        """Make a change; for how long, from before it, a request that began was still answered as before."""
        began = time.monotonic()
        change()
        late = 0.0
        waiting = list(self.places)
        while waiting:
            assert time.monotonic() - began < 10, f"not heeded by {len(waiting)} of {len(self.places)}"
            for place in tuple(waiting):
                asked_at = time.monotonic()
                if place.ask() == new:
                    waiting.remove(place)
                else:
                    late = max(late, asked_at - began)
            time.sleep(0.02)
        assert [place.ask() for place in self.places] == [new] * len(self.places), "it was taken back"
        return late


@pytest.fixture(params=["two gateways on PostgreSQL", "two workers on SQLite"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    opened = on_postgresql if "PostgreSQL" in request.param else on_sqlite
    with simulator(tmp_path) as upstream, opened(tmp_path, upstream) as (gateway, places):
        password = gateway.wait_for(r"password (\S+)").group(1)
        admin = Admin(gateway.url, password)
        assert [place.ask() for place in places] == [EVA, EVA]
        yield Scene(upstream, admin, places)
        admin.close()


@contextmanager
def on_postgresql(data_dir: Path, upstream: SimulatorProcess) -> Iterator[tuple[GatewayProcess, list[Place]]]:
    with ExitStack() as stack:
        extra = {"DATABASE_URL": stack.enter_context(temporary_database())}
        assert run_command(data_dir, "migrate", "--no-input", extra=extra).returncode == 0
        ada = stack.enter_context(serving(data_dir, extra))
        bo = stack.enter_context(serving(data_dir, extra, key=ada.key))
        add_accounts(ada, upstream)
        yield ada, [place(stack, ada.url, ada.headers), place(stack, bo.url, ada.headers)]


@contextmanager
def on_sqlite(data_dir: Path, upstream: SimulatorProcess) -> Iterator[tuple[GatewayProcess, list[Place]]]:
    with ExitStack() as stack:
        gateway = stack.enter_context(serving(data_dir, {}, "--port", "0", "--workers", "2"))
        add_accounts(gateway, upstream)
        places: dict[str, Place] = {}
        for _ in range(30):
            one = place(stack, gateway.url, gateway.headers)
            mark = gateway.ledger.mark()
            assert one.ask() == EVA
            (turn,) = gateway.ledger.settled(mark)
            places.setdefault(turn.replica, one)
            if len(places) == 2:
                break
        yield gateway, list(places.values())


@contextmanager
def serving(data_dir: Path, extra: dict[str, str], *arguments: str, key: str = "") -> Iterator[GatewayProcess]:
    process = GatewayProcess(data_dir, extra, arguments or ("--port", "0"), key=key)
    try:
        yield process
    finally:
        process.stop()


def add_accounts(gateway: GatewayProcess, upstream: SimulatorProcess) -> None:
    for name, priority in (("eva", "0"), ("fay", "1")):
        gateway.add_account(name, upstream.base_url(), "--transport", "http", "--priority", priority)
    time.sleep(WITHIN)  # until every process knows them


def place(stack: ExitStack, url: str, headers: dict[str, str]) -> Place:
    client = stack.enter_context(httpx.Client(trust_env=False, timeout=20, limits=httpx.Limits(max_connections=1)))
    return Place(client, url, headers)


def test_what_an_operator_does_is_heeded_by_every_process_within_two_seconds(scene: Scene) -> None:
    for table, action, new in (
        ("accounts/account", "pause", FAY),
        ("accounts/account", "resume", EVA),
        ("accounts/account", "open_circuit", FAY),
        ("accounts/account", "reset_circuit", EVA),
        ("gateway/apikey", "disable", NO_KEY),
        ("gateway/apikey", "enable", EVA),
    ):
        late = scene.heeded_after(partial(scene.admin.act, table, action), new)
        print(f"{action}: {late:.2f} s")
        assert late < WITHIN, action


def test_a_circuit_that_one_process_opens_keeps_turns_from_the_account_everywhere(scene: Scene) -> None:
    here = scene.places[0]

    def fail_until_open() -> None:
        scene.upstream.add_fault("eof@eva")
        while here.ask() != FAY:
            pass
        scene.upstream.clear_faults()

    late = scene.heeded_after(fail_until_open, FAY)
    print(f"opened by traffic: {late:.2f} s")
    assert late < WITHIN
