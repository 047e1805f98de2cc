"""Clients are lent, and closed when their proxy has no account and nobody uses them any more."""

import asyncio

import httpx
import pytest

from accounts.http_clients import HttpClients

PROXY = "socks5://127.0.0.1:1080"
OTHER = "socks5://127.0.0.1:1081"


class Client(httpx.AsyncClient):
    """Counts how often it was closed; `close` may fail or never end."""

    def __init__(self, fault=None):
        super().__init__(transport=httpx.MockTransport(lambda request: httpx.Response(200)))
        self.closed = 0
        self.fault = fault

    async def aclose(self):
        self.closed += 1
        if self.fault == "hang":
            await asyncio.Event().wait()
        if self.fault == "break":
            raise httpx.CloseError("broken")
        await super().aclose()


class Made:
    def __init__(self, fault=None):
        self.clients = []
        self.fault = fault

    def __call__(self, proxy):
        self.clients.append((proxy, Client(self.fault)))
        return self.clients[-1][1]


@pytest.fixture
def made():
    return Made()


@pytest.fixture
def owner(made):
    return HttpClients(made, 0.05)


async def test_each_way_has_one_client_that_is_made_when_it_is_needed(owner, made):
    assert made.clients == []
    async with owner.borrowed(None) as direct, owner.borrowed(PROXY) as first, owner.borrowed(PROXY) as again:
        assert first is again is not direct
    assert [proxy for proxy, _ in made.clients] == [None, PROXY]
    assert repr(owner) == "<HttpClients 2 in use, 0 retired>"


async def test_only_clients_of_proxies_that_are_kept_stay_and_the_direct_one(owner, made):
    for proxy in (None, PROXY, OTHER):
        await owner.borrow(proxy).give_back()
    await owner.keep({OTHER})
    assert [client.closed for _, client in made.clients] == [0, 1, 0]
    assert repr(owner) == "<HttpClients 2 in use, 0 retired>"


async def test_a_client_in_use_is_closed_with_its_last_loan(owner, made):
    first, second = owner.borrow(PROXY), owner.borrow(PROXY)
    await owner.keep(set())
    assert repr(owner) == "<HttpClients 0 in use, 1 retired>"
    await first.give_back()
    await first.give_back()
    assert made.clients[0][1].closed == 0
    await second.give_back()
    assert made.clients[0][1].closed == 1
    assert repr(owner) == "<HttpClients 0 in use, 0 retired>"


async def test_a_proxy_that_comes_back_gets_a_client_of_its_own(owner, made):
    old = owner.borrow(PROXY)
    await owner.keep(set())
    new = owner.borrow(PROXY)
    assert new.client is not old.client
    await old.give_back()
    await owner.keep({PROXY})
    assert [client.closed for _, client in made.clients] == [1, 0]


async def test_at_the_end_all_are_closed_those_in_use_too(owner, made):
    owner.borrow(None)
    owner.borrow(PROXY)
    retired = owner.borrow(OTHER)
    await owner.keep({PROXY})
    await owner.close()
    assert [client.closed for _, client in made.clients] == [1, 1, 1]
    assert repr(owner) == "<HttpClients 0 in use, 0 retired>"
    await retired.give_back()


@pytest.mark.parametrize("fault", ["hang", "break"])
async def test_a_connection_that_cannot_be_closed_holds_up_nobody(fault):
    owner = HttpClients(Made(fault), 0.05)
    loan = owner.borrow(PROXY)
    await owner.keep(set())
    await loan.give_back()
    assert repr(owner) == "<HttpClients 0 in use, 0 retired>"
