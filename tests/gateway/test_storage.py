"""One contract for both stores: the twin in memory, on which most tests stand, and the database."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from django.db import connection

from accounts.circuit import CircuitState
from accounts.quota import Quota
from accounts.registry import StateChange
from accounts.states import State
from gateway.continuity.rules import SessionKey, SessionKind, Strength
from gateway.continuity.sessions import Session
from gateway.models import ApiKey, Replica
from gateway.protocol.events import Usage
from gateway.storage import StoreError
from gateway.turns.ledger import LedgerError
from gateway.turns.record import Attempt
from gateway.turns.turn import Outcome
from tests.support.postgres import require_postgres
from tests.support.processes import ROOT, environment
from tests.support.records import record, sent, settled
from tests.support.stores import Furnished, FurnishedDatabase, FurnishedMemory

REPLICA, OTHER = uuid.uuid4(), uuid.uuid4()
HALF_A_MINUTE, AT_ONCE = timedelta(seconds=30), timedelta(0)


@pytest.fixture(params=["memory", pytest.param("database", marks=pytest.mark.django_db(transaction=True))])
def furnished(request: pytest.FixtureRequest) -> Iterator[Furnished]:
    made: Furnished = FurnishedMemory() if request.param == "memory" else FurnishedDatabase()
    yield made
    made.close()


@pytest.fixture
def database(transactional_db: None) -> Iterator[FurnishedDatabase]:
    made = FurnishedDatabase()
    yield made
    made.close()


async def test_all_keys_are_loaded_also_those_that_are_off(furnished: Furnished) -> None:
    keys = [await furnished.add_key("on"), await furnished.add_key("off", enabled=False)]
    assert sorted(await furnished.store.load_keys(), key=lambda key: key.id) == keys


async def test_the_use_of_a_key_changes_nothing_that_is_loaded(furnished: Furnished) -> None:
    key = await furnished.add_key("used")
    await furnished.store.mark_used({key.id: datetime.now(UTC), key.id + 1: datetime.now(UTC)})
    assert list(await furnished.store.load_keys()) == [key]


async def test_accounts_come_in_the_order_of_the_pool(furnished: Furnished) -> None:
    cy, ada, bo = [await furnished.add_account(*each) for each in (("cy", 1), ("ada", 2), ("bo", 1))]
    loaded = await furnished.store.load_accounts(())
    assert loaded is not None
    assert [account.id for account in loaded] == [bo.id, cy.id, ada.id]


async def test_accounts_that_are_known_are_not_loaded_again(furnished: Furnished) -> None:
    assert await furnished.store.load_accounts(()) is None
    await furnished.add_account("ada", 1)
    loaded = await furnished.store.load_accounts(())
    assert loaded is not None
    assert await furnished.store.load_accounts(loaded) is None


async def test_an_account_that_was_removed_is_a_change(furnished: Furnished) -> None:
    ada, bo = await furnished.add_account("ada", 1), await furnished.add_account("bo", 2)
    known = await furnished.store.load_accounts(()) or ()
    await furnished.remove_account(ada)
    loaded = await furnished.store.load_accounts(known)
    assert loaded is not None
    assert [account.id for account in loaded] == [bo.id]


async def test_a_change_of_state_is_written_and_raises_the_revision(furnished: Furnished) -> None:
    ada = await furnished.add_account("ada", 1)
    until = datetime(2030, 1, 1, tzinfo=UTC).timestamp()
    change = StateChange(ada.id, State.ACTIVE, State.LIMITED, "usage limit reached", until)
    assert await furnished.store.persist_state(change)
    (after,) = await furnished.store.load_accounts(()) or ()
    assert (after.state, after.state_reason, after.state_until) == (State.LIMITED, "usage limit reached", until)
    assert after.revision == ada.revision + 1


@pytest.mark.parametrize("stale", ["state", "revision", "account"])
async def test_a_change_whose_conditions_no_longer_hold_changes_nothing(furnished: Furnished, stale: str) -> None:
    ada = await furnished.add_account("ada", 1)
    change = StateChange(ada.id, State.ACTIVE, State.NEEDS_LOGIN, "refused", revision=ada.revision)
    known = await furnished.store.load_accounts(()) or ()
    stale_change = {
        "state": replace(change, expected=State.LIMITED),
        "revision": replace(change, revision=ada.revision + 1),
        "account": replace(change, account=ada.id + 1),
    }[stale]
    assert not await furnished.store.persist_state(stale_change)
    assert await furnished.store.load_accounts(known) is None


async def test_a_turn_is_inserted_once_and_then_replaced(furnished: Furnished) -> None:
    turn, other = sent(record()), sent(record())
    await furnished.store.write_turns(REPLICA, [turn, other])
    rows = await furnished.turns()
    assert {row["outcome"] for row in rows.values()} == {""}
    await furnished.store.write_turns(REPLICA, [settled(turn)])
    after = await furnished.turns()
    assert after.keys() == rows.keys()
    assert after[turn.request.id]["outcome"] == "completed"
    assert after[other.request.id] == rows[other.request.id]


async def test_everything_that_is_known_of_a_turn_is_stored(furnished: Furnished) -> None:
    turn = settled(sent(record(headers={"session-id": "s-1"})), Outcome.FAILED)
    turn.response_id, turn.cause, turn.code, turn.status = "resp_1", "rejected", "invalid_prompt", 400
    turn.attempts = [Attempt(account="ada", transport="http", passed_over={"bo": "limited until 14:05"})]
    turn.response_bytes, turn.events = 5_000_000_000, 7
    turn.usage = Usage(input=10, cached=4, output=3, reasoning=1, total=13)
    await furnished.store.write_turns(REPLICA, [turn])
    (row,) = (await furnished.turns()).values()
    expected = {
        "id": turn.request.id,
        "replica": REPLICA,
        "received_at": datetime.fromtimestamp(turn.request.received_at, UTC),
        "key_id": 1,
        "key_name": "tests",
        "account_id": 1,
        "account_name": "ada",
        "session": str(turn.request.session),
        "route": "codex",
        "downstream": "sse",
        "upstream": "http",
        "model": "gpt-5.5",
        "response_id": "resp_1",
        "started_ms": None,
        "streaming_ms": None,
        "outcome": "failed",
        "cause": "rejected",
        "code": "invalid_prompt",
        "status": 400,
        "attempts": turn.attempts,
        "request_bytes": len(turn.request.body.raw),
        "response_bytes": 5_000_000_000,
        "events": 7,
        "generated": True,
        "input_tokens": 10,
        "cached_tokens": 4,
        "output_tokens": 3,
        "reasoning_tokens": 1,
        **{f"{phase}_ms": 1000 for phase in ("admitted", "routed", "sent", "settled")},
    }
    assert row == expected


async def test_what_came_from_outside_cannot_keep_a_turn_from_being_stored(furnished: Furnished) -> None:
    turn = settled(sent(record(model="a\0b" + "c" * 500)))
    turn.response_id, turn.code = "resp\0" * 100, "code\0" * 100
    turn.usage = Usage(input=2**53, cached=2**53, output=2**53, reasoning=2**53)
    turn.response_bytes, turn.events = 2**40, 2**40
    await furnished.store.write_turns(REPLICA, [turn, sent(record())])
    row = (await furnished.turns())[turn.request.id]
    assert row["model"].startswith("ab")
    assert row["response_id"].startswith("resp" * 10)
    assert row["output_tokens"] >= 2**31 - 1


async def test_the_sessions_of_turns_are_written_with_them(furnished: Furnished) -> None:
    key = SessionKey(1, SessionKind.SESSION, "digest")
    session = Session(key, 1, Strength.HARD, 1_800_000_000.0)
    turn = sent(record())
    turn.session = session
    await furnished.store.write_turns(REPLICA, [turn])
    assert list(await furnished.store.load_sessions(OTHER, 0, 0)) == [session]
    turn.session = replace(session, account_id=2, used_at=1_800_000_001.0)
    await furnished.store.write_turns(REPLICA, [turn])
    assert list(await furnished.store.load_sessions(OTHER, 0, 0)) == [turn.session]


async def test_a_process_is_not_told_of_its_own_sessions(furnished: Furnished) -> None:
    turn = sent(record())
    turn.session = Session(SessionKey(1, SessionKind.SESSION, "digest"), 1, Strength.HARD, 1_800_000_000.0)
    await furnished.store.write_turns(REPLICA, [turn])
    assert list(await furnished.store.load_sessions(REPLICA, 0, 0)) == []
    assert list(await furnished.store.load_sessions(OTHER, 0, 0)) == [turn.session]


async def test_soft_sessions_are_forgotten_before_hard_ones(furnished: Furnished) -> None:
    turns = []
    for digest, strength, used_at in (
        ("a", Strength.SOFT, 100.0),
        ("b", Strength.HARD, 100.0),
        ("c", Strength.SOFT, 200.0),
    ):
        turn = sent(record())
        turn.session = Session(SessionKey(1, SessionKind.SESSION, digest), 1, strength, used_at)
        turns.append(turn)
    await furnished.store.write_turns(REPLICA, turns)
    assert [each.key.digest for each in await furnished.store.load_sessions(OTHER, 50, 150)] == ["b", "c"]
    assert [each.key.digest for each in await furnished.store.load_sessions(OTHER, 150, 150)] == ["c"]


async def test_a_process_is_known_from_its_registration_on(furnished: Furnished) -> None:
    assert not await furnished.store.beat(REPLICA)
    await furnished.store.register(REPLICA)
    assert await furnished.store.beat(REPLICA)


async def test_one_process_does_the_chores_of_all_and_another_when_it_is_gone(furnished: Furnished) -> None:
    store = furnished.store
    assert not await store.leads(REPLICA, HALF_A_MINUTE)
    for replica in (REPLICA, OTHER):
        await store.register(replica)
    assert [await store.leads(each, HALF_A_MINUTE) for each in (REPLICA, OTHER)] == [True, False]
    await store.unregister(REPLICA)
    assert [await store.leads(each, HALF_A_MINUTE) for each in (REPLICA, OTHER)] == [False, True]
    assert not await store.leads(OTHER, AT_ONCE)


async def test_what_is_noted_of_an_account_changes_nothing_that_is_loaded(furnished: Furnished) -> None:
    ada = await furnished.add_account("ada", 1)
    known = await furnished.store.load_accounts(()) or ()
    await furnished.store.mark_accounts_used({ada.id: 1_800_000_000.0, ada.id + 1: 1_800_000_000.0})
    await furnished.store.note_circuits({ada.id: CircuitState.OPEN, ada.id + 1: CircuitState.OPEN}, uuid.uuid4())
    assert await furnished.store.load_accounts(known) is None


async def test_usage_of_an_account_that_is_gone_is_let_go(furnished: Furnished) -> None:
    await furnished.store.save_quotas({77: Quota()})


async def test_only_turns_of_processes_that_ended_are_closed_and_never_twice(furnished: Furnished) -> None:
    store = furnished.store
    for replica in (REPLICA, OTHER):
        await store.register(replica)
    lost, finished, alive = sent(record()), settled(sent(record())), sent(record())
    await store.write_turns(OTHER, [lost, finished])
    await store.write_turns(REPLICA, [alive])
    assert await store.close_interrupted(HALF_A_MINUTE) == 0
    await store.unregister(OTHER)
    assert await store.close_interrupted(HALF_A_MINUTE) == 1
    assert await store.close_interrupted(HALF_A_MINUTE) == 0
    rows = await furnished.turns()
    outcomes = {turn: rows[turn.request.id]["outcome"] for turn in (lost, finished, alive)}
    assert outcomes == {lost: "interrupted", finished: "completed", alive: ""}
    assert rows[lost.request.id]["cause"] == "process_died"


async def test_a_process_whose_heartbeat_stopped_is_dead_once(furnished: Furnished) -> None:
    store = furnished.store
    await store.register(REPLICA)
    await store.write_turns(REPLICA, [sent(record()), sent(record())])
    assert await store.close_dead(HALF_A_MINUTE) == 0
    assert await store.close_dead(AT_ONCE) == 2
    assert await store.close_dead(AT_ONCE) == 0


async def test_turns_of_a_process_that_nobody_knows_are_closed_at_a_start(furnished: Furnished) -> None:
    await furnished.store.write_turns(uuid.uuid4(), [sent(record())])
    assert await furnished.store.close_dead(HALF_A_MINUTE) == 0
    assert await furnished.store.close_interrupted(HALF_A_MINUTE) == 1


async def test_a_process_that_was_only_slow_is_alive_again_with_its_next_heartbeat(furnished: Furnished) -> None:
    store = furnished.store
    await store.register(REPLICA)
    assert await store.close_dead(AT_ONCE) == 0
    assert await store.beat(REPLICA)
    turn = sent(record())
    await store.write_turns(REPLICA, [turn])
    assert await store.close_interrupted(HALF_A_MINUTE) == 0
    await store.write_turns(REPLICA, [settled(turn)])
    assert [row["outcome"] for row in (await furnished.turns()).values()] == ["completed"]


async def test_a_turn_taken_for_lost_that_ends_after_all_keeps_its_real_end(furnished: Furnished) -> None:
    store = furnished.store
    await store.register(REPLICA)
    turn = sent(record())
    await store.write_turns(REPLICA, [turn])
    assert await store.close_dead(AT_ONCE) == 1
    await store.write_turns(REPLICA, [settled(turn)])
    (row,) = (await furnished.turns()).values()
    assert (row["outcome"], row["cause"]) == ("completed", "")


async def test_a_database_with_every_migration_lacks_none(furnished: Furnished) -> None:
    assert await furnished.store.unapplied_migrations() == 0


async def test_a_batch_is_written_whole_or_not_at_all(database: FurnishedDatabase) -> None:
    good, bad = sent(record()), sent(record())
    bad.status = -1  # no database takes it: the column is positive
    with pytest.raises(LedgerError):
        await database.store.write_turns(REPLICA, [good, bad])
    assert await database.turns() == {}


async def test_a_process_that_was_found_dead_is_not_looked_at_again(database: FurnishedDatabase) -> None:
    await database.store.register(REPLICA)
    await database.store.close_dead(HALF_A_MINUTE)
    assert (await database.run(Replica.objects.get, id=REPLICA)).stopped_at is None
    await database.store.close_dead(AT_ONCE)
    assert (await database.run(Replica.objects.get, id=REPLICA)).stopped_at is not None


async def test_a_used_key_shows_when(database: FurnishedDatabase) -> None:
    key, moment = await database.add_key("used"), datetime(2026, 3, 2, tzinfo=UTC)
    await database.store.mark_used({key.id: moment})
    assert (await database.run(ApiKey.objects.get, id=key.id)).last_used_at == moment


async def test_what_the_database_raises_is_the_stores_own_error(database: FurnishedDatabase) -> None:
    def rename(before: str, after: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {before} RENAME TO {after}")

    tables = ("gateway_turn", "gateway_replica", "gateway_apikey")
    for table in tables:
        await database.run(rename, table, f"{table}_away")
    try:
        with pytest.raises(LedgerError):
            await database.store.write_turns(REPLICA, [sent(record())])
        for call in (database.store.beat(REPLICA), database.store.load_keys(), database.store.close_dead(AT_ONCE)):
            with pytest.raises(StoreError):
                await call
    finally:
        for table in tables:
            await database.run(rename, f"{table}_away", table)


@pytest.mark.slow
def test_the_same_holds_on_postgresql(tmp_path: Path) -> None:
    url = require_postgres()
    server = psycopg.conninfo.conninfo_to_dict(url.replace("postgres://", "postgresql://", 1))
    test_run = subprocess.run(
        [sys.executable, "-m", "pytest", __file__, "-n", "0", "-m", "not slow", "--create-db", "-k", "database"],
        cwd=ROOT,
        env=environment(tmp_path, {"DATABASE_URL": f"{url.rpartition('/')[0]}/contract_{uuid.uuid4().hex[:8]}"}),
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert test_run.returncode == 0, f"on PostgreSQL at {server['host']}:\n{test_run.stdout}{test_run.stderr}"
