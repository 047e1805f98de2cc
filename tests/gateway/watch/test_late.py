"""Turns that are written late, or written anew, are in the sums all the same."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.db.models import Sum

from gateway.clock import Clock
from gateway.models import Replica, Turn
from gateway.replicas.store import bury
from gateway.turns.ledger_store import write
from gateway.turns.record import TurnRecord
from gateway.turns.turn import Outcome
from gateway.watch import rollup
from gateway.watch.late import LATE
from gateway.watch.models import Late, Rollup, Total
from gateway.watch.rollup import HOUR, MINUTE, QUARTER, roll_up
from tests.support.records import record, sent, settled

pytestmark = pytest.mark.django_db

REPLICA = uuid.uuid4()
TTL = timedelta(seconds=30)


def ended(ago: float, outcome: Outcome = Outcome.COMPLETED) -> TurnRecord:
    """A turn that ended so many seconds ago, a second after it came."""
    at = time.time() - ago
    return settled(sent(record(at=at - 1, clock=Clock(wall=lambda: at))), outcome)


def store(*turns: TurnRecord) -> None:
    write(REPLICA, TTL, turns)


def count() -> None:
    roll_up(datetime.now(UTC) + timedelta(seconds=1))


def counted(seconds: int, **having: object) -> int:
    return Total.objects.filter(seconds=seconds, **having).aggregate(all=Sum("turns"))["all"] or 0


def agree(turns: int, **having: object) -> bool:
    return {counted(seconds, **having) for seconds in (QUARTER, HOUR)} == {turns}


def test_a_turn_that_is_written_much_later_than_it_ended_is_counted_where_it_ended() -> None:
    store(ended(0))
    count()
    late = ended(3000)
    store(late)
    count()
    assert agree(2)
    assert counted(MINUTE) == 2
    assert not Late.objects.exists()
    minute = Turn.objects.get(pk=late.request.id).settled_at
    assert minute is not None
    assert Rollup.objects.get(seconds=MINUTE, start=rollup.floor(minute, MINUTE)).turns == 1


def test_a_turn_that_comes_when_the_minutes_of_its_time_are_forgotten_is_in_its_quarter_and_hour() -> None:
    store(ended(36_000), ended(0))
    count()
    store(ended(36_000))
    count()
    assert agree(3)
    assert counted(MINUTE) == 1


def test_turns_written_in_time_leave_nothing_to_count_again() -> None:
    store(ended(LATE.total_seconds() - 5))
    assert not Late.objects.exists()


def test_a_turn_that_was_taken_for_interrupted_counts_once_when_it_has_ended_after_all() -> None:
    now = datetime.now(UTC)
    Replica.objects.create(id=REPLICA, host="here", process=1, started_at=now, heartbeat_at=now)
    at = time.time()
    turn = sent(record(at=at - 3600, clock=Clock(wall=lambda: at)))
    store(turn)
    bury([REPLICA])
    Turn.objects.update(settled_at=now - timedelta(minutes=50))
    store(ended(0))
    count()
    assert (counted(HOUR, error="process_died"), counted(HOUR, error="")) == (1, 1)
    store(settled(turn))
    count()
    assert not Total.objects.filter(error="process_died").exists()
    assert not Rollup.objects.filter(error="process_died").exists()
    assert agree(2, error="")


def test_what_is_noted_while_others_count_is_counted_the_next_time() -> None:
    now = datetime.now(UTC)
    store(ended(0))
    count()
    at = now - timedelta(minutes=40)
    first, second = Late.objects.create(at=at), Late.objects.create(at=at)
    rollup.late.done([first])
    assert list(Late.objects.all()) == [second]
