"""The models: an account's own catalogue, passed through and kept for a while."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

from accounts.states import Kind, State
from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.simulator.catalogue import catalogue
from gateway.turns.catalogue import FAILED_FOR, FRESH_FOR, MOST_ASKED
from gateway.turns.names import Alias
from gateway.upstream.http import HttpTransport
from tests.gateway.consumers.asgi import Edge, HttpClient, edge
from tests.support.network import real_network

CODEX = "/backend-api/codex/models"
V1 = "/v1/models"
QUERY = b"client_version=0.171.0"
CATALOGUE, _ = catalogue()


@dataclass
class Upstream:
    """An upstream that knows nothing but models, and the time."""

    asked: list[httpx.Request] = field(default_factory=list)
    status: int = 200
    etag: str | None = '"1"'
    now: float = 1000.0
    refused: set[str] = field(default_factory=set)
    content: bytes = CATALOGUE

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        if self.accounts[-1] in self.refused:
            return httpx.Response(503)
        headers = {} if self.etag is None else {"etag": self.etag}
        return httpx.Response(self.status, content=self.content, headers=headers)

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


async def test_an_account_that_cannot_tell_gives_way_to_the_next_of_its_kind(upstream: Upstream):
    async with edge_at(upstream, "ada", "bo") as made:
        upstream.refused = {"ada"}
        assert (await ask(made)).body == CATALOGUE
        await ask(made, query=b"client_version=0.172.0")
        assert upstream.accounts == ["ada", "bo", "bo"]
        upstream.now += FAILED_FOR + 1
        await ask(made, query=b"client_version=0.173.0")
        assert upstream.accounts[-2:] == ["ada", "bo"]


async def test_no_more_than_a_few_accounts_are_asked_for_one_client(upstream: Upstream):
    async with edge_at(upstream, "ada", "bo", "cy", "dee") as made:
        upstream.status = 503
        assert (await ask(made)).status == 503
        assert len(upstream.asked) == MOST_ASKED


async def test_the_account_that_offers_most_is_asked_before_others(upstream: Upstream):
    async with edge_at(upstream, "ada", "bo", "cy") as made:
        offers = {1: frozenset({"a"}), 2: frozenset({"a", "b"}), 3: frozenset({"a", "b", "c"})}
        for number, models in offers.items():
            made.store.accounts[number] = replace(made.store.accounts[number], models=models)
        made.store.accounts[3] = replace(made.store.accounts[3], state=State.LIMITED)
        await made.runtime.registry.refresh()
        await ask(made)
        assert upstream.accounts == ["bo"]


async def test_a_disabled_account_is_not_spoken_to(made: Edge, upstream: Upstream):
    made.store.accounts[1] = replace(made.store.accounts[1], state=State.DISABLED)
    await made.runtime.registry.refresh()
    assert (await ask(made)).json()["error"]["code"] == "no_accounts"
    assert upstream.asked == []


async def names(made: Edge, path: str, query: bytes = QUERY) -> list[str]:
    document = (await ask(made, path, query)).json()
    return [entry.get("slug") or entry["id"] for entry in document.get("models", document.get("data"))]


async def with_aliases(made: Edge, *aliases: Alias, **key: Any) -> None:
    made.runtime.names.replace(aliases)
    made.runtime.keys.replace([replace(made.store.keys[0], **key)])


def broken(**changes: object) -> bytes:
    """A catalogue of a good entry and a bad one."""
    good = json.loads(CATALOGUE)["models"][0]
    bad = {**good, "slug": "bad", **changes}
    bad = {name: value for name, value in bad.items() if value is not ...}
    return json.dumps({"models": [good, bad]}).encode()


BAD_ENTRIES = [
    {"display_name": ...},
    {"display_name": None},
    {"supported_reasoning_levels": None},
    {"shell_type": "telepathy"},
    {"visibility": 1},
    {"supported_in_api": "yes"},
    {"priority": 1.5},
    {"truncation_policy": {"mode": "tokens"}},
    {"experimental_supported_tools": {}},
    {"base_instructions": ...},
    {"slug": 5},
]


@pytest.mark.parametrize("changes", BAD_ENTRIES, ids=lambda changes: next(iter(changes)))
async def test_one_bad_entry_does_not_spoil_the_catalogue(made: Edge, upstream: Upstream, changes: dict[str, object]):
    upstream.content = broken(**changes)
    assert await names(made, CODEX) == ["gpt-5.5"]


async def test_the_openai_list_is_made_from_a_catalogue_too(made: Edge):
    document = (await ask(made, V1, b"")).json()
    assert document["object"] == "list"
    assert [entry["id"] for entry in document["data"]][:2] == ["gpt-5.5", "gpt-5.6-sol"]
    assert {entry["object"] for entry in document["data"]} == {"model"}


@pytest.mark.parametrize("content", [b'{"object":"list","data":[{"id":"gpt-4.1"}]}', b"{}", b"<html>", b'{"models":7}'])
async def test_what_is_no_catalogue_is_not_given_to_codex_which_then_keeps_its_own(
    made: Edge, upstream: Upstream, content: bytes
):
    upstream.content = content
    assert (await ask(made)).status == 404


async def test_aliases_stand_beside_their_models_in_both_shapes(made: Edge):
    await with_aliases(
        made, Alias("gpt-5.5-high", "gpt-5.5", "high"), Alias("gone", "gpt-1"), Alias("his", "gpt-5.5", key=2)
    )
    for path in (CODEX, V1):
        assert {"gpt-5.5", "gpt-5.5-high"} <= set(await names(made, path))
        assert not {"gone", "his"} & set(await names(made, path))
    entry = next(each for each in (await ask(made)).json()["models"] if each["slug"] == "gpt-5.5-high")
    assert (entry["display_name"], entry["default_reasoning_level"]) == ("gpt-5.5-high", "high")


async def test_a_key_sees_the_models_it_may_use(made: Edge):
    await with_aliases(made, Alias("fast", "gpt-6-sol"), models=("gpt-5*",))
    assert await names(made, CODEX) == await names(made, V1) == ["gpt-5.5", "gpt-5.6-sol"]


def shown_etag(made: Edge, account: int, told: str) -> str | None:
    key = made.runtime.keys.from_authorization(f"Bearer {made.key.text}")
    catalogue = made.runtime.engine.catalogue
    return catalogue.headers_for(key, made.store.accounts[account], {"x-models-etag": told, "a": "b"}).get(
        "x-models-etag"
    )


@pytest.mark.parametrize("aliases", [(), (Alias("fast", "gpt-5.5"),)])
async def test_the_etag_of_an_answer_is_that_of_the_list_and_a_new_one_makes_the_list_new(
    made: Edge, upstream: Upstream, aliases: tuple[Alias, ...]
):
    await with_aliases(made, *aliases)
    first = (await ask(made)).headers["etag"]
    assert shown_etag(made, 1, '"1"') == first
    upstream.etag = '"2"'
    second = shown_etag(made, 1, '"2"')
    assert second != first
    assert (await ask(made)).headers["etag"] == second
    assert len(upstream.asked) == 2


async def test_another_alias_is_another_list(made: Edge):
    first = (await ask(made)).headers["etag"]
    await with_aliases(made, Alias("fast", "gpt-5.5"))
    assert (await ask(made)).headers["etag"] != first


async def test_an_account_whose_list_the_client_does_not_have_says_nothing_about_it(upstream: Upstream):
    async with edge_at(upstream, "ada", "bo") as made:
        await ask(made)
        assert shown_etag(made, 2, '"bo"') is None
        await with_aliases(made, accounts=frozenset({2}))
        assert shown_etag(made, 2, '"bo"') == '"bo"'
