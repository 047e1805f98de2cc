"""What turns do to the health of their accounts, on real sockets."""

from __future__ import annotations

import dataclasses

from accounts.circuit import CircuitState
from accounts.credentials import CodexCredentials
from accounts.states import State
from accounts.tokens import Refreshed, Result
from gateway.storage import StoreError
from tests.gateway.turns.test_dispatch import HELLO
from tests.support.inprocess import World, world

TWO = ("ada", "bo")


def circuit(w: World, account: int) -> CircuitState:
    return w.runtime.engine.health.circuits.get(account).state


async def test_an_account_that_fails_again_and_again_is_ejected_and_the_pool_goes_on():
    async with world(*TWO, faults=("reset@ada",)) as w:
        answers = [await w.post(HELLO) for _ in range(8)]
        assert circuit(w, 1) is CircuitState.OPEN
        assert circuit(w, 2) is CircuitState.CLOSED
        assert "Hello from bo" in answers[-1].text
        turns = await w.settled()
        assert "circuit open" in turns[-1]["attempts"][0]["passed_over"]["ada"]


async def test_when_all_accounts_fail_alike_none_is_ejected():
    async with world(*TWO, faults=("reset",)) as w:
        for _ in range(10):
            await w.post(HELLO)
        assert {circuit(w, 1), circuit(w, 2)} == {CircuitState.CLOSED}


async def test_clients_that_leave_and_requests_that_are_wrong_do_not_touch_the_circuit():
    async with world(faults=("http:400",), transport="http") as w:
        for _ in range(10):
            await w.post(HELLO)
        assert circuit(w, 1) is CircuitState.CLOSED


async def test_the_usage_that_an_upstream_tells_is_kept():
    async with world() as w:
        await w.post(HELLO)
        await w.settled()
        assert w.runtime.engine.health.quotas.get(1).windows


async def test_a_refused_token_is_renewed_once_and_the_turn_goes_on():
    async with world(transport="http") as w:
        old = CodexCredentials("old-token", "refresh")
        w.store.accounts[1] = dataclasses.replace(w.store.accounts[1], credentials=old, revision=2)
        await w.runtime.registry.refresh()
        asked: list[str | None] = []

        async def refresh(account: int, refused: str | None = None) -> Refreshed:
            asked.append(refused)
            new = CodexCredentials("sim-ada", "refresh-2")
            w.store.accounts[1] = dataclasses.replace(w.store.accounts[1], credentials=new, revision=3)
            return Refreshed(Result.REFRESHED, new)

        w.refresher.answer = refresh
        answer = await w.post(HELLO)
        assert "Hello from ada" in answer.text
        assert asked == ["old-token"]
        (turn,) = await w.settled()
        assert [attempt.get("cause") for attempt in turn["attempts"]] == ["unauthorized", None]
        assert w.runtime.registry.get(1).state is State.ACTIVE


async def test_a_token_that_cannot_be_renewed_needs_a_login_and_the_turn_goes_elsewhere():
    async with world(*TWO, transport="http", faults=("unauthorized@ada",)) as w:

        async def refuse(account: int, refused: str | None = None) -> Refreshed:
            return Refreshed(Result.NEEDS_LOGIN)

        w.refresher.answer = refuse
        answer = await w.post(HELLO)
        assert "Hello from bo" in answer.text
        assert w.runtime.registry.get(1).state is State.NEEDS_LOGIN


async def test_an_account_whose_issuer_is_out_of_reach_rests_and_is_not_asked_to_sign_in():
    async with world(*TWO, transport="http", faults=("unauthorized@ada",)) as w:
        old = CodexCredentials("sim-ada", "refresh")
        w.store.accounts[1] = dataclasses.replace(w.store.accounts[1], credentials=old, revision=2)
        await w.runtime.registry.refresh()
        answer = await w.post(HELLO)
        assert "Hello from bo" in answer.text
        assert w.runtime.registry.get(1).state is State.LIMITED


async def test_a_database_that_is_away_while_a_token_is_renewed_is_no_defect():
    async with world(*TWO, transport="http", faults=("unauthorized@ada",)) as w:

        async def fail(account: int, refused: str | None = None) -> Refreshed:
            raise StoreError("the database is away")

        old = CodexCredentials("sim-ada", "refresh")
        w.store.accounts[1] = dataclasses.replace(w.store.accounts[1], credentials=old, revision=2)
        await w.runtime.registry.refresh()
        w.refresher.answer = fail
        answer = await w.post(HELLO)
        assert "Hello from bo" in answer.text
        assert w.runtime.registry.get(1).state is State.LIMITED
