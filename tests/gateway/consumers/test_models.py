"""The models: an account's own catalogue, passed through and kept for a while."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import httpx
import pytest

from accounts.states import Kind
from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.turns.catalogue import FRESH_FOR
from gateway.upstream.http import HttpTransport
from tests.gateway.consumers.asgi import Edge, HttpClient, edge
from tests.support.network import real_network

CODEX = "/backend-api/codex/models"
V1 = "/v1/models"
QUERY = b"client_version=0.171.0"
CATALOGUE = b'{"models": [ {"slug":"gpt-5.5"} ]}'


@dataclass
class Upstream:
    """An upstream that knows nothing but models, and the time."""

    asked: list[httpx.Request] = field(default_factory=list)
    status: int = 200
    etag: str | None = '"1"'
    now: float = 1000.0

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        headers = {} if self.etag is None else {"etag": self.etag}
        return httpx.Response(self.status, content=CATALOGUE, headers=headers)

    @property
    def accounts(self) -> list[str]:
        return [request.headers["authorization"].removeprefix("Bearer sim-") for request in self.asked]


@pytest.fixture
def upstream() -> Upstream:
    return Upstream()


@asynccontextmanager
async def edge_at(upstream: Upstream, *names: str) -> AsyncIterator[Edge]:
    clock = Clock(monotonic=lambda: upstream.now)
    tunables = Tunables()
    http = HttpTransport(tunables, clock, httpx.MockTransport(upstream.answer))
    network = replace(real_network(tunables, clock), http=http)
    async with edge(*names, clock=clock, tunables=tunables, network=network) as made:
        yield made


@pytest.fixture
async def made(upstream: Upstream) -> AsyncIterator[Edge]:
    async with edge_at(upstream) as made:
        yield made


async def ask(made: Edge, path: str = CODEX, query: bytes = QUERY, **headers: str) -> HttpClient:
    return await made.answer(path, method="GET", query=query, **headers)


async def test_the_catalogue_and_its_etag_pass_as_the_account_gave_them(made: Edge, upstream: Upstream):
    answer = await ask(made)
    assert (answer.status, answer.body, answer.headers["etag"]) == (200, CATALOGUE, '"1"')
    (request,) = upstream.asked
    assert request.url.raw_path == b"/backend-api/codex/models?" + QUERY


async def test_an_upstream_without_an_etag_gets_none(made: Edge, upstream: Upstream):
    upstream.etag = None
    assert "etag" not in (await ask(made)).headers


async def test_the_request_carries_the_accounts_credentials_and_no_condition(made: Edge, upstream: Upstream):
    await ask(made, user_agent="codex", if_none_match='"1"', cookie="c")
    (request,) = upstream.asked
    assert request.headers["authorization"] == "Bearer sim-ada"
    assert request.headers["user-agent"] == "codex"
    assert not {"if-none-match", "cookie"} & set(request.headers)


async def test_a_catalogue_is_kept_for_a_while_per_query(made: Edge, upstream: Upstream):
    for _ in range(3):
        await ask(made)
    await ask(made, query=b"client_version=0.172.0")
    assert len(upstream.asked) == 2
    upstream.now += FRESH_FOR + 1
    upstream.etag = '"2"'
    assert (await ask(made)).headers["etag"] == '"2"'
    assert len(upstream.asked) == 3


async def test_both_roots_prefer_their_own_kind_of_account(upstream: Upstream):
    async with edge_at(upstream, "ada", "bo") as made:
        made.store.accounts[2] = replace(made.store.accounts[2], kind=Kind.OPENAI)
        await made.runtime.registry.refresh()
        await ask(made, V1, b"")
        await ask(made, CODEX, b"")
    assert upstream.accounts == ["bo", "ada"]


async def test_where_there_is_no_such_account_another_kinds_catalogue_is_better_than_none(
    made: Edge, upstream: Upstream
):
    assert (await ask(made, V1)).status == 200
    assert upstream.accounts == ["ada"]


async def test_an_account_whose_upstream_refuses_is_not_the_only_one_asked(upstream: Upstream):
    async with edge_at(upstream, "ada", "bo") as made:
        made.store.accounts[2] = replace(made.store.accounts[2], kind=Kind.OPENAI)
        await made.runtime.registry.refresh()
        upstream.status = 500
        await ask(made)
    assert upstream.accounts == ["ada", "bo"]


@pytest.mark.parametrize("status", [401, 403, 500, 502])
async def test_an_upstreams_failure_is_a_503_and_is_not_kept(made: Edge, upstream: Upstream, status: int):
    upstream.status = status
    answer = await ask(made)
    assert answer.status == 503
    assert answer.json()["error"]["message"]
    upstream.status = 200
    assert (await ask(made)).status == 200


async def test_without_an_account_the_answer_says_what_the_operator_must_do(made: Edge):
    del made.store.accounts[1]
    await made.runtime.registry.refresh()
    told = [(await ask(made, path)).json()["error"] for path in (CODEX, V1)]
    assert {error["code"] for error in told} == {"no_accounts"}


@pytest.mark.parametrize("path", [CODEX, V1])
async def test_without_a_valid_key_there_are_no_models(made: Edge, upstream: Upstream, path: str):
    answer = await ask(made, path, authorization="Bearer pm_wrong_key")
    assert (answer.status, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert upstream.asked == []
