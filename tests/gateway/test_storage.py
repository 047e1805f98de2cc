"""One contract for both stores: the twin in memory, on which most tests stand, and the database."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection

from accounts.circuit import CircuitState
from accounts.circuits import CircuitChange, SharedCircuit
from accounts.quota import Quota
from accounts.registry import StateChange
from accounts.states import State
from gateway.continuity.leases import LeaseKey, Tenure
from gateway.continuity.rules import SessionKey, SessionKind, Strength
from gateway.continuity.sessions import Departure, Session
from gateway.metering.limits import KeyLimits, Limit, Span, Unit, windows_at
from gateway.metering.prices import Price
from gateway.metering.store import load_prices, prune_usage
from gateway.metering.usage import Counts, Tally
from gateway.models import ApiKey, KeyUsage, ModelAlias, Replica, TokenPrice
from gateway.protocol.events import Usage
from gateway.replicas.shares import Use
from gateway.replicas.store import Peer
from gateway.rows import load_aliases
from gateway.storage import Store, StoreError
from gateway.turns.ledger import LedgerError
from gateway.turns.names import Alias
from gateway.turns.record import Attempt, TurnRecord
from gateway.turns.turn import Outcome
from gateway.watch.snapshot import Snapshot
from tests.support.postgres import require_postgres
from tests.support.processes import ROOT, environment
from tests.support.records import record, sent, settled
from tests.support.stores import Furnished, FurnishedDatabase, FurnishedMemory

REPLICA, OTHER = uuid.uuid4(), uuid.uuid4()


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


async def test_batches_written_at_the_same_time_take_one_thread_and_so_one_connection(
    database: FurnishedDatabase,
) -> None:
    before = set(threading.enumerate())
    await asyncio.gather(*(database.store.write_turns(REPLICA, [sent(record())]) for _ in range(4)))
    assert len(set(threading.enumerate()) - before) == 1


async def test_everything_that_is_known_of_a_turn_is_stored(furnished: Furnished) -> None:
    turn = settled(sent(record(headers={"session-id": "s-1"})), Outcome.FAILED)
    turn.response_id, turn.cause, turn.code, turn.status = "resp_1", "rejected", "invalid_prompt", 400
    turn.attempts = [Attempt(account="ada", transport="http", passed_over={"bo": "limited until 14:05"})]
    turn.response_bytes, turn.events = 5_000_000_000, 7
    turn.usage, turn.cost = Usage(input=10, cached=4, output=3, reasoning=1, total=13), 42
    await furnished.store.write_turns(REPLICA, [turn])
    (row,) = (await furnished.turns()).values()
    expected = {
        "id": turn.request.id,
        "replica": REPLICA,
        "via": None,
        "lease_id": None,
        "lease_epoch": None,
        "anchored": False,
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
        "asked_model": "",
        "operation": "",
        "response_id": "resp_1",
        "settled_at": datetime.fromtimestamp(1_800_000_001.0, UTC),
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
        "cost_micros": 42,
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


async def test_the_account_that_made_a_response_is_found_for_its_client_alone(furnished: Furnished) -> None:
    running, done, lost = sent(record()), settled(sent(record())), settled(sent(record()), Outcome.UPSTREAM_LOST)
    running.response_id, done.response_id, lost.response_id = "resp_running", "resp_done", "resp_lost"
    await furnished.store.write_turns(REPLICA, [running, done, lost])
    found = furnished.store.find_maker
    assert [await found(1, response_id) for response_id in ("resp_running", "resp_done", "resp_lost")] == [1, 1, 1]
    assert await found(1, "resp_other") is None
    assert await found(2, "resp_done") is None


async def test_the_sessions_of_turns_are_written_with_them(furnished: Furnished) -> None:
    key = SessionKey(1, SessionKind.SESSION, "digest")
    session = Session(key, 1, Strength.HARD, 1_800_000_000.0)
    turn = sent(record())
    turn.sessions = [session]
    await furnished.store.write_turns(REPLICA, [turn])
    assert list(await furnished.store.load_sessions(OTHER, 0, 0)) == [session]
    turn.sessions = [replace(session, account_id=2, used_at=1_800_000_001.0)]
    await furnished.store.write_turns(REPLICA, [turn])
    assert list(await furnished.store.load_sessions(OTHER, 0, 0)) == turn.sessions


async def test_a_session_that_was_used_later_is_not_overwritten(furnished: Furnished) -> None:
    newer = Session(SessionKey(1, SessionKind.SESSION, "digest"), 1, Strength.HARD, 1_800_000_000.0)
    older = replace(newer, account_id=2, used_at=1_700_000_000.0)
    turns = [sent(record()) for _ in range(3)]
    for turn, session in zip(turns, (newer, older, older), strict=True):
        turn.sessions = [session]
    await furnished.store.write_turns(REPLICA, turns[:2])
    await furnished.store.write_turns(REPLICA, turns[2:])
    assert list(await furnished.store.load_sessions(OTHER, 0, 0)) == [newer]


async def test_a_process_is_not_told_of_its_own_sessions(furnished: Furnished) -> None:
    turn = sent(record())
    turn.sessions = [Session(SessionKey(1, SessionKind.SESSION, "digest"), 1, Strength.HARD, 1_800_000_000.0)]
    await furnished.store.write_turns(REPLICA, [turn])
    assert list(await furnished.store.load_sessions(REPLICA, 0, 0)) == []
    assert list(await furnished.store.load_sessions(OTHER, 0, 0)) == turn.sessions


async def test_soft_sessions_are_forgotten_before_hard_ones(furnished: Furnished) -> None:
    turns = []
    for digest, strength, used_at in (
        ("a", Strength.SOFT, 100.0),
        ("b", Strength.HARD, 100.0),
        ("c", Strength.SOFT, 200.0),
    ):
        turn = sent(record())
        turn.sessions = [Session(SessionKey(1, SessionKind.SESSION, digest), 1, strength, used_at)]
        turns.append(turn)
    await furnished.store.write_turns(REPLICA, turns)
    assert [each.key.digest for each in await furnished.store.load_sessions(OTHER, 50, 150)] == ["b", "c"]
    assert [each.key.digest for each in await furnished.store.load_sessions(OTHER, 150, 150)] == ["c"]


LATER = datetime(2030, 1, 1, tzinfo=UTC).timestamp()


async def tied_to(furnished: Furnished, state: State | None, until: float | None = None) -> Departure:
    """A conversation that is tied hard to an account in `state`, and its departure from it; None: to no account."""
    ada = await furnished.add_account("ada", 1)
    if state is None:
        await furnished.remove_account(ada)
    elif state is not State.ACTIVE:
        assert await furnished.store.persist_state(StateChange(ada.id, State.ACTIVE, state, "why", until))
    before = Session(SessionKey(1, SessionKind.THREAD, "digest"), ada.id, Strength.HARD, 1_800_000_000.0)
    turn = sent(record())
    turn.sessions = [before]
    await furnished.store.write_turns(REPLICA, [turn])
    after = replace(before, account_id=7, strength=Strength.SOFT, used_at=LATER, left_behind=frozenset({"a", "b"}))
    return Departure(before, after, not_before=LATER)


@pytest.mark.parametrize(
    ("state", "until", "may"),
    [
        (State.ACTIVE, None, False),
        (State.LIMITED, LATER - 1, False),
        (State.LIMITED, LATER, False),
        (State.LIMITED, LATER + 1, True),
        (State.LIMITED, None, True),
        (State.PAUSED, None, True),
        (State.NEEDS_LOGIN, None, True),
        (State.DISABLED, None, True),
        (None, None, True),
    ],
)
async def test_a_conversation_departs_from_an_account_that_is_out_for_long_enough(
    furnished: Furnished, state: State | None, until: float | None, may: bool
) -> None:
    departure = await tied_to(furnished, state, until)
    assert await furnished.store.depart(OTHER, departure) is may
    expected = departure.after if may else departure.before
    assert await furnished.store.find_session(expected.key) == expected
    # The one who did it knows, the others learn it.
    assert list(await furnished.store.load_sessions(OTHER, 0, 0)) == ([] if may else [expected])


@pytest.mark.parametrize("changed", [{"account_id": 9}, {"strength": Strength.SOFT}, None])
async def test_a_conversation_that_changed_meanwhile_does_not_depart(
    furnished: Furnished, changed: dict[str, Any] | None
) -> None:
    departure = await tied_to(furnished, State.PAUSED)
    if changed is None:
        departure = replace(departure, before=replace(departure.before, key=SessionKey(2, SessionKind.THREAD, "d")))
    else:
        departure = replace(departure, before=replace(departure.before, **changed))
    assert not await furnished.store.depart(OTHER, departure)
    assert len(await furnished.store.load_sessions(OTHER, 0, 0)) == 1


async def test_of_two_departures_one_is_done(furnished: Furnished) -> None:
    departure = await tied_to(furnished, State.PAUSED)
    done = await asyncio.gather(*(furnished.store.depart(OTHER, departure) for _ in range(2)))
    assert sorted(done) == [False, True]


async def test_a_process_is_known_from_its_registration_on(furnished: Furnished) -> None:
    assert not await furnished.store.beat(REPLICA)
    await furnished.store.register(REPLICA)
    assert await furnished.store.beat(REPLICA)


async def test_one_process_does_the_chores_of_all_and_another_when_it_is_gone(furnished: Furnished) -> None:
    store = furnished.store
    assert not await store.leads(REPLICA)
    for replica in (REPLICA, OTHER):
        await store.register(replica)
    assert [await store.leads(each) for each in (REPLICA, OTHER)] == [True, False]
    await store.unregister(REPLICA)
    assert [await store.leads(each) for each in (REPLICA, OTHER)] == [False, True]
    await furnished.silence(OTHER)
    assert not await store.leads(OTHER)


async def test_what_is_noted_of_an_account_changes_nothing_that_is_loaded(furnished: Furnished) -> None:
    ada = await furnished.add_account("ada", 1)
    known = await furnished.store.load_accounts(()) or ()
    await furnished.store.mark_accounts_used({ada.id: 1_800_000_000.0, ada.id + 1: 1_800_000_000.0})
    assert await furnished.store.load_accounts(known) is None


def open_circuit(account: int, version: int) -> CircuitChange:
    opened = SharedCircuit(
        version, str(REPLICA), CircuitState.OPEN, since=1_800_000_000.0, until=1_800_000_010.0, ejections=1,
        failed_as="upstream_lost",
    )  # fmt: skip
    return CircuitChange(account, opened, uuid.uuid4())


async def test_a_circuit_that_is_stored_is_found_with_the_account(furnished: Furnished) -> None:
    ada = await furnished.add_account("ada", 1)
    known = await furnished.store.load_accounts(()) or ()
    change = open_circuit(ada.id, 1)
    assert await furnished.store.save_circuit(change)
    (found,) = await furnished.store.load_accounts(known) or ()
    assert found.circuit == change.circuit
    assert await furnished.store.load_accounts((found,)) is None


async def test_a_circuit_that_was_changed_by_others_first_is_not_overwritten(furnished: Furnished) -> None:
    ada = await furnished.add_account("ada", 1)
    first = open_circuit(ada.id, 1)
    assert await furnished.store.save_circuit(first)
    for version in (1, 3):
        assert not await furnished.store.save_circuit(open_circuit(ada.id, version))
    (found,) = await furnished.store.load_accounts(()) or ()
    assert found.circuit == first.circuit
    assert await furnished.store.save_circuit(open_circuit(ada.id, 2))


async def test_a_circuit_of_an_account_that_is_gone_is_not_stored(furnished: Furnished) -> None:
    assert not await furnished.store.save_circuit(open_circuit(77, 1))


async def test_usage_of_an_account_that_is_gone_is_let_go(furnished: Furnished) -> None:
    await furnished.store.save_quotas({77: Quota()})


async def test_only_turns_of_processes_that_ended_are_closed_and_never_twice(furnished: Furnished) -> None:
    store = furnished.store
    for replica in (REPLICA, OTHER):
        await store.register(replica)
    lost, finished, alive = sent(record()), settled(sent(record())), sent(record())
    await store.write_turns(OTHER, [lost, finished])
    await store.write_turns(REPLICA, [alive])
    assert await store.close_interrupted() == 0
    await store.unregister(OTHER)
    assert await store.close_interrupted() == 1
    assert await store.close_interrupted() == 0
    rows = await furnished.turns()
    outcomes = {turn: rows[turn.request.id]["outcome"] for turn in (lost, finished, alive)}
    assert outcomes == {lost: "interrupted", finished: "completed", alive: ""}
    assert rows[lost.request.id]["cause"] == "process_died"


async def test_a_process_whose_heartbeat_stopped_is_dead_once(furnished: Furnished) -> None:
    store = furnished.store
    await store.register(REPLICA)
    await store.write_turns(REPLICA, [sent(record()), sent(record())])
    assert await store.close_dead() == 0
    await furnished.silence(REPLICA)
    assert await store.close_dead() == 2
    assert await store.close_dead() == 0


async def test_turns_of_a_process_that_nobody_knows_are_closed_at_a_start(furnished: Furnished) -> None:
    await furnished.store.write_turns(uuid.uuid4(), [sent(record())])
    assert await furnished.store.close_dead() == 0
    assert await furnished.store.close_interrupted() == 1


async def test_a_process_that_was_only_slow_is_alive_again_with_its_next_heartbeat(furnished: Furnished) -> None:
    store = furnished.store
    await store.register(REPLICA)
    await furnished.silence(REPLICA)
    assert await store.close_dead() == 0
    assert await store.beat(REPLICA) is False
    assert await store.beat(REPLICA) is True
    turn = sent(record())
    await store.write_turns(REPLICA, [turn])
    assert await store.close_interrupted() == 0
    await store.write_turns(REPLICA, [settled(turn)])
    assert [row["outcome"] for row in (await furnished.turns()).values()] == ["completed"]


async def test_a_turn_taken_for_lost_that_ends_after_all_keeps_its_real_end(furnished: Furnished) -> None:
    store = furnished.store
    await store.register(REPLICA)
    turn = sent(record())
    await store.write_turns(REPLICA, [turn])
    await furnished.silence(REPLICA)
    assert await store.close_dead() == 1
    await store.write_turns(REPLICA, [settled(turn)])
    (row,) = (await furnished.turns()).values()
    assert (row["outcome"], row["cause"]) == ("completed", "")


LANES = LeaseKey(1, "thread-id:abc")


def on_lane(key: LeaseKey = LANES, tenure: Tenure | None = None, response: str = "") -> TurnRecord:
    """A turn on a lane of the conversation `key`; with a response it is over and its anchor is to be published."""
    turn = sent(record())
    turn.lease, turn.tenure, turn.response_id = key, tenure, response
    if response:
        turn.anchored = True
        settled(turn)
    return turn


async def granted(store: Store, replica: uuid.UUID, key: LeaseKey = LANES) -> Tenure:
    """The replica sends a turn on a lane, and owns the lane's conversation from then on."""
    return (await store.write_turns(replica, [on_lane(key)])).leases.granted[key]


async def test_a_lease_is_claimed_in_the_commit_of_the_turn_that_needs_it(furnished: Furnished) -> None:
    store = furnished.store
    await store.register(REPLICA)
    turns = [on_lane(), on_lane(), on_lane(LeaseKey(2, LANES.session))]
    written = await store.write_turns(REPLICA, turns)
    assert written.leases.granted.keys() == {LANES, LeaseKey(2, LANES.session)}
    assert {tenure.epoch for tenure in written.leases.granted.values()} == {1}
    assert await store.owner_of_session(LANES) == REPLICA
    assert await store.owner_of_session(LeaseKey(3, LANES.session)) is None


async def test_a_lease_is_not_taken_from_a_replica_that_lives(furnished: Furnished) -> None:
    store = furnished.store
    for replica in (REPLICA, OTHER):
        await store.register(replica)
    await granted(store, REPLICA)
    written = await store.write_turns(OTHER, [turn := on_lane()])
    assert not written.leases.granted
    assert await store.owner_of_session(LANES) == REPLICA
    assert turn.request.id in await furnished.turns(), "the turn itself is written all the same"


@pytest.mark.parametrize("how", ["silent", "buried", "stopped", "released", "itself"])
async def test_a_lease_is_claimed_with_the_next_epoch_when_its_owner_is(furnished: Furnished, how: str) -> None:
    store = furnished.store
    for replica in (REPLICA, OTHER):
        await store.register(replica)
    tenure = await granted(store, REPLICA)
    if how in ("silent", "buried"):
        await furnished.silence(REPLICA)
    if how == "buried":
        await store.close_dead()
    if how == "stopped":
        await store.unregister(REPLICA)
    if how == "released":
        await store.release_leases(REPLICA, [tenure])
    if how != "itself":
        assert await store.owner_of_session(LANES) is None
    claimed = await granted(store, REPLICA if how == "itself" else OTHER)
    assert claimed == Tenure(tenure.lease, tenure.epoch + 1)


async def test_what_a_replica_claims_after_it_has_stopped_binds_nobody(furnished: Furnished) -> None:
    store = furnished.store
    for replica in (REPLICA, OTHER):
        await store.register(replica)
    await store.unregister(REPLICA)
    late = await granted(store, REPLICA)
    assert await store.owner_of_session(LANES) is None
    assert await granted(store, OTHER) == Tenure(late.lease, late.epoch + 1)


async def test_a_late_release_does_not_close_the_successor(furnished: Furnished) -> None:
    store = furnished.store
    await store.register(REPLICA)
    first = await granted(store, REPLICA)
    await granted(store, REPLICA)
    await store.release_leases(REPLICA, [first])
    assert await store.owner_of_session(LANES) == REPLICA


async def test_a_replica_whose_heartbeat_was_late_owns_nothing_any_more(furnished: Furnished) -> None:
    store = furnished.store
    await store.register(REPLICA)
    await granted(store, REPLICA)
    assert await store.beat(REPLICA) is True
    assert await store.owner_of_session(LANES) == REPLICA
    await furnished.silence(REPLICA)
    assert await store.beat(REPLICA) is False
    assert await store.owner_of_session(LANES) is None


async def test_the_owner_of_a_published_response_is_found_while_it_owns_the_conversation(furnished: Furnished) -> None:
    store = furnished.store
    for replica in (REPLICA, OTHER):
        await store.register(replica)
    tenure = await granted(store, REPLICA)
    assert not (await store.write_turns(REPLICA, [on_lane(tenure=tenure, response="resp_1")])).leases.fenced
    assert await store.owner_of_response(1, "resp_1") == REPLICA
    assert await store.owner_of_response(2, "resp_1") is None, "another client's"
    assert await store.owner_of_response(1, "resp_2") is None
    await furnished.silence(REPLICA)
    assert await store.owner_of_response(1, "resp_1") is None, "nobody is there"
    await granted(store, OTHER)
    await store.beat(REPLICA)
    assert await store.owner_of_response(1, "resp_1") is None, "it lives again, and owns it no more"


async def test_a_response_that_its_lane_did_not_publish_is_found_by_nobody(furnished: Furnished) -> None:
    store = furnished.store
    await store.register(REPLICA)
    turn = on_lane(tenure=await granted(store, REPLICA), response="resp_1")
    turn.anchored = False
    assert not (await store.write_turns(REPLICA, [turn])).leases.fenced
    assert await store.owner_of_response(1, "resp_1") is None


async def test_what_was_made_under_an_earlier_claim_of_the_same_replica_is_found_no_more(furnished: Furnished) -> None:
    store = furnished.store
    await store.register(REPLICA)
    first = await granted(store, REPLICA)
    await store.write_turns(REPLICA, [on_lane(tenure=first, response="resp_1")])
    await granted(store, REPLICA)
    assert await store.owner_of_response(1, "resp_1") is None
    late = await store.write_turns(REPLICA, [on_lane(tenure=first, response="resp_2")])
    assert late.leases.fenced == {LANES: first}
    assert await store.owner_of_response(1, "resp_2") is None


async def test_a_fenced_replica_publishes_nothing_and_is_told_so(furnished: Furnished) -> None:
    store = furnished.store
    for replica in (REPLICA, OTHER):
        await store.register(replica)
    tenure = await granted(store, REPLICA)
    await furnished.silence(REPLICA)
    await granted(store, OTHER)
    await store.beat(REPLICA)
    late = on_lane(tenure=tenure, response="resp_late")
    assert (await store.write_turns(REPLICA, [late])).leases.fenced == {LANES: tenure}
    row = (await furnished.turns())[late.request.id]
    assert (row["outcome"], row["anchored"]) == ("completed", False)
    assert await store.owner_of_response(1, "resp_late") is None


async def test_many_leases_are_claimed_in_one_commit(furnished: Furnished) -> None:
    await furnished.store.register(REPLICA)
    keys = [LeaseKey(1, f"thread-id:{number}") for number in range(450)]
    written = await furnished.store.write_turns(REPLICA, [on_lane(key) for key in keys])
    assert written.leases.granted.keys() == set(keys)


async def test_replicas_know_each_other_with_address_and_use_while_they_live(furnished: Furnished) -> None:
    store = furnished.store
    await store.register(REPLICA, "http://127.0.0.1:1")
    await store.register(OTHER, "http://127.0.0.1:2")
    use = Use(3, 4096, {1: 2}, {1: 5})
    await store.beat(OTHER, use)
    assert list(await store.peers(REPLICA)) == [Peer(OTHER, "http://127.0.0.1:2", use)]
    assert list(await store.peers(OTHER)) == [Peer(REPLICA, "http://127.0.0.1:1", Use())]
    await furnished.silence(OTHER)
    assert list(await store.peers(REPLICA)) == []


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
    await database.store.close_dead()
    assert (await database.run(Replica.objects.get, id=REPLICA)).stopped_at is None
    await database.silence(REPLICA)
    await database.store.close_dead()
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
        for call in (database.store.beat(REPLICA), database.store.load_keys(), database.store.close_dead()):
            with pytest.raises(StoreError):
                await call
    finally:
        for table in tables:
            await database.run(rename, f"{table}_away", table)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_same_holds_on_postgresql(tmp_path: Path) -> None:
    url = require_postgres()
    server = psycopg.conninfo.conninfo_to_dict(url.replace("postgres://", "postgresql://", 1))
    test_run = subprocess.run(
        [sys.executable, "-m", "pytest", __file__, "-n", "0", "-m", "not slow", "--create-db", "-k", "database"],
        cwd=ROOT,
        env=environment(tmp_path, {"DATABASE_URL": f"{url.rpartition('/')[0]}/contract_{uuid.uuid4().hex[:8]}"}),
        capture_output=True,
        text=True,
        timeout=115,
        check=False,
    )
    assert test_run.returncode == 0, f"on PostgreSQL at {server['host']}:\n{test_run.stdout}{test_run.stderr}"


async def test_what_a_process_tells_and_is_asked_is_kept_for_it_alone(furnished: Furnished) -> None:
    await furnished.store.tell(REPLICA, Snapshot(held=1))
    await furnished.store.tell(REPLICA, Snapshot(held=2))
    assert list(await furnished.store.take_orders(REPLICA)) == []


async def test_a_settled_turn_says_when_it_ended(furnished: Furnished) -> None:
    running, done = sent(record()), settled(sent(record()))
    await furnished.store.write_turns(REPLICA, [running, done])
    turns = await furnished.turns()
    assert turns[running.request.id]["settled_at"] is None
    assert turns[done.request.id]["settled_at"] == datetime.fromtimestamp(1_800_000_001.0, UTC)
    assert await furnished.store.close_interrupted() == 1
    assert (await furnished.turns())[running.request.id]["settled_at"] is not None


NOW = 1_796_000_000.0
LIMITED = KeyLimits((Limit(Unit.REQUESTS, Span.DAY, 5),), turns=2)


async def test_what_others_have_counted_is_told_when_turns_are_written(furnished: Furnished) -> None:
    places = {(1, window): Counts(3, 40, 500, 1) for window in windows_at(NOW)}
    await furnished.store.write_turns(OTHER, [], Tally(places, at=NOW))
    await furnished.store.write_turns(OTHER, [], Tally(places, at=NOW))  # the same again is the same
    mine = Tally({(1, windows_at(NOW)[0]): Counts(7), (2, windows_at(NOW)[0]): Counts(7)}, frozenset({1, 2}), NOW)
    assert (await furnished.store.write_turns(REPLICA, [], mine)).elsewhere.counts == places
    assert (await furnished.store.load_usage(REPLICA, {1}, NOW)).counts == places
    assert (await furnished.store.load_usage(REPLICA, {2}, NOW)).counts == {}


async def test_what_was_counted_in_other_windows_is_not_told(furnished: Furnished) -> None:
    places = {(1, window): Counts(1) for window in windows_at(NOW - 86_400)}
    await furnished.store.write_turns(OTHER, [], Tally(places, at=NOW))
    (place,) = (await furnished.store.load_usage(REPLICA, {1}, NOW)).counts
    assert place[1].span is Span.MONTH


async def test_a_key_has_running_elsewhere_what_live_processes_have_open(furnished: Furnished) -> None:
    key = await furnished.add_key("bounded", limits=LIMITED)
    await furnished.store.register(OTHER)
    turns = [sent(record(key=key)) for _ in range(3)]
    await furnished.store.write_turns(OTHER, turns)
    await furnished.store.write_turns(OTHER, [settled(turns[0])])
    assert (await furnished.store.load_usage(REPLICA, {key.id}, NOW)).running == {key.id: 2}
    assert (await furnished.store.load_usage(OTHER, {key.id}, NOW)).running == {}
    await furnished.store.unregister(OTHER)
    assert (await furnished.store.load_usage(REPLICA, {key.id}, NOW)).running == {}


async def test_a_turn_that_was_forwarded_runs_elsewhere_for_all_but_the_replica_that_forwarded_it(
    furnished: Furnished,
) -> None:
    key = await furnished.add_key("bounded", limits=LIMITED)
    await furnished.store.register(OTHER)
    forwarded = sent(record(key=key))
    forwarded.request = replace(forwarded.request, via=REPLICA)
    await furnished.store.write_turns(OTHER, [forwarded, sent(record(key=key))])
    assert (await furnished.store.load_usage(REPLICA, {key.id}, NOW)).running == {key.id: 1}
    assert (await furnished.store.load_usage(uuid.uuid4(), {key.id}, NOW)).running == {key.id: 2}


async def test_limits_and_scopes_are_loaded_with_the_key(furnished: Furnished) -> None:
    await furnished.add_key("bounded", limits=LIMITED, accounts=frozenset({3}), models=("gpt*",))
    (key,) = await furnished.store.load_keys()
    assert (key.limits, key.accounts, key.models) == (LIMITED, {3}, ("gpt*",))


def test_usage_that_is_long_over_is_pruned(db: None) -> None:
    now = datetime.fromtimestamp(NOW, UTC)
    for span, age in [(Span.MINUTE, 2), (Span.MINUTE, 0), (Span.DAY, 63 * 24), (Span.DAY, 61 * 24), (Span.MONTH, 9999)]:
        KeyUsage.objects.create(key_id=1, replica=REPLICA, span=span, start=now - timedelta(hours=age))
    assert prune_usage(now) == 2
    assert sorted(KeyUsage.objects.values_list("span", flat=True)) == ["day", "minute", "month"]


def test_prices_and_aliases_are_loaded_as_they_were_stored(db: None) -> None:
    TokenPrice.objects.create(model="gpt", since=date(2026, 1, 1), input="1.25", output=10)
    key = ApiKey.objects.create(name="k", lookup="l", digest="d")
    ModelAlias.objects.create(name="fast", model="gpt", effort="low", key=key)
    assert load_prices() == [Price("gpt", date(2026, 1, 1), Decimal("1.25"), Decimal(10))]
    assert load_aliases() == [Alias("fast", "gpt", "low", key.id)]
