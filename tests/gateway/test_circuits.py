"""Two gateways on one store share their circuits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from accounts.circuit import Circuit, CircuitState
from accounts.circuits import SharedCircuit
from gateway.conf import Tunables
from gateway.runtime import Runtime
from tests.support.inprocess import account
from tests.support.memory import MemoryStore
from tests.support.network import real_network
from tests.support.virtual_loop import EPOCH, in_virtual_time, loop_clock


def two_accounts() -> MemoryStore:
    accounts = {number: account(number, name, "http://127.0.0.1/v1") for number, name in ((1, "ada"), (2, "bo"))}
    return MemoryStore(accounts=accounts)


@asynccontextmanager
async def replica(store: MemoryStore) -> AsyncIterator[Runtime]:
    clock = loop_clock()
    runtime = Runtime(Tunables(), store, clock, real_network(Tunables(), clock))
    await runtime.start()
    try:
        yield runtime
    finally:
        store.broken = False
        await runtime.stop()


def circuit(runtime: Runtime) -> Circuit:
    return runtime.engine.health.circuits.get(1)


def now() -> float:
    return EPOCH + asyncio.get_running_loop().time()


def eject(runtime: Runtime) -> None:
    circuits = runtime.engine.health.circuits
    for _ in range(5):
        circuits.admit(1, now())
        circuits.failed(1, "upstream_lost", now(), now(), {1, 2})
    assert circuit(runtime).state is CircuitState.OPEN


@in_virtual_time
async def test_another_replica_knows_of_an_open_circuit_within_two_seconds() -> None:
    store = two_accounts()
    async with replica(store) as one, replica(store) as other:
        await asyncio.sleep(0.3)
        eject(one)
        await asyncio.sleep(2)
        assert circuit(other).until == circuit(one).until
        assert not circuit(other).admits(now())


@in_virtual_time
async def test_an_operators_reset_is_known_within_two_seconds() -> None:
    store = two_accounts()
    async with replica(store) as one:
        eject(one)
        await asyncio.sleep(1)
        stored = store.accounts[1].circuit
        store.accounts[1] = account(
            1, "ada", "http://127.0.0.1/v1", circuit=SharedCircuit(stored.version + 1, since=now()), revision=9
        )
        await asyncio.sleep(2)
        assert circuit(one) == Circuit(
            since=circuit(one).since, heard_at=circuit(one).heard_at, reported_at=EPOCH, failed_as="upstream_lost"
        )


@in_virtual_time
async def test_a_restart_forgets_no_open_circuit() -> None:
    store = two_accounts()
    async with replica(store) as before:
        eject(before)
    async with replica(store) as after:
        assert not circuit(after).admits(now())


@in_virtual_time
async def test_a_circuit_that_could_not_be_written_is_written_once_the_database_is_back() -> None:
    store = two_accounts()
    async with replica(store) as one:
        store.broken = True
        eject(one)
        await asyncio.sleep(5)
        assert store.accounts[1].circuit.version == 0
        store.broken = False
        await asyncio.sleep(1)
        assert store.accounts[1].circuit.state is CircuitState.OPEN


@in_virtual_time
async def test_turns_that_change_nothing_are_not_written() -> None:
    store = two_accounts()
    async with replica(store) as one:
        for _ in range(10):
            began = now()
            one.engine.health.circuits.admit(1, began)
            await asyncio.sleep(1)
            one.engine.health.circuits.succeeded(1, began, now())
        assert store.accounts[1].revision == 1
