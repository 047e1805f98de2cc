"""Choices of a process: what they are made from, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from accounts.circuits import Circuits
from accounts.quota import Quota, Window
from accounts.registry import AccountSnapshot, Registry
from accounts.selection import SelectionRequest, Strategy
from gateway.clock import Clock
from gateway.turns.choosing import Chooser, Tried
from gateway.turns.health import Health
from gateway.turns.slots import AccountStreams, Offer
from tests.bench.stepped import Calls
from tests.support.inprocess import account
from tests.support.memory import MemoryStore
from tests.support.network import ScriptedRefresher

NOW = 1_800_000_000.0
ANY = SelectionRequest(model="gpt-5.5")


class Pool:
    """A process's accounts, with everything that a choice looks at."""

    def __init__(self, accounts: Sequence[AccountSnapshot], strategy: Strategy = Strategy.PRIORITY) -> None:
        clock = Clock(wall=lambda: NOW)
        self.store = MemoryStore(accounts={each.id: each for each in accounts})
        self.registry = Registry(self.store.load_accounts, self.store.persist_state)
        self.circuits = Circuits()
        self.health = Health(self.registry, ScriptedRefresher(), clock, self.circuits, lambda states, turn: None)
        self.streams = AccountStreams(clock, 30.0)
        self.chooser = Chooser(self.registry, self.health, self.streams, clock, strategy)

    def ranked(self, tried: Tried | None = None, wanted: SelectionRequest = ANY) -> tuple[int, ...]:
        return self.chooser.choose(wanted, tried or Tried()).ranked


async def pool_of(count: int, strategy: Strategy = Strategy.PRIORITY) -> Pool:
    accounts = [replace(account(number, f"account-{number}", "http://x/v1"), priority=1) for number in range(count)]
    pool = Pool(accounts, strategy)
    await pool.registry.refresh()
    return pool


async def test_each_change_is_seen_by_the_next_choice() -> None:
    pool = await pool_of(3)
    assert pool.ranked() == (0, 1, 2)
    for _ in range(8):
        await pool.streams.take(1, lambda: Offer([0], frozenset()))
    assert pool.ranked() == (1, 2)
    for _ in range(5):
        pool.circuits.admit(1, NOW)
        pool.circuits.failed(1, "upstream_lost", NOW, NOW, {0, 1, 2})
    assert pool.ranked() == (2,)
    pool.store.accounts[2] = replace(pool.store.accounts[2], models=frozenset({"gpt-6"}), revision=2)
    pool.store.accounts[3] = replace(account(3, "new", "http://x/v1"), models=frozenset({"gpt-5.5"}))
    await pool.registry.refresh()
    assert pool.ranked() == (3,)


async def test_usage_counts_as_soon_as_it_is_told() -> None:
    pool = await pool_of(2, Strategy.LEAST_USED)
    pool.health.quotas.observe(0, Quota({"codex/primary": Window(NOW, 50.0, 300, NOW + 3600)}))
    assert pool.ranked() == (1, 0)
    pool.health.quotas.observe(1, Quota({"codex/primary": Window(NOW, 60.0, 300, NOW + 3600)}))
    assert pool.ranked() == (0, 1)


async def test_accounts_out_of_reach_come_last_and_refused_ones_never() -> None:
    pool = await pool_of(3)
    assert pool.ranked(Tried(unreachable={0: "connect_failed"})) == (1, 2)
    everybody = Tried(unreachable={0: "connect_failed", 1: "connect_failed"}, refused={2: "usage_limit"})
    assert pool.ranked(everybody) == (0, 1)


async def test_a_key_is_kept_to_its_accounts() -> None:
    pool = await pool_of(3)
    assert pool.ranked(wanted=SelectionRequest(allowed=frozenset({2}))) == (2,)


@pytest.mark.parametrize("strategy", Strategy)
async def test_a_choice_costs_a_bounded_number_of_calls_for_each_account(strategy: Strategy) -> None:
    """Seventeen for each of two hundred accounts are half a millisecond to one, as fast as the machine is."""
    pool = await pool_of(200, strategy)
    for number in range(200):
        quota = Quota({"codex/primary": Window(NOW, float(number % 100), 300, NOW + 3600)})
        pool.health.quotas.observe(number, quota)
    pool.ranked()
    await pool.streams.take(1, lambda: Offer([1], frozenset()))
    calls = Calls()
    with calls.counting():
        pool.ranked()
    assert 200 < calls.total <= 200 * 17, calls.by_name.most_common(10)
