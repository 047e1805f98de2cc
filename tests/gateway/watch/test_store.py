"""Snapshots and orders in the database."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from gateway.models import Replica
from gateway.watch import store
from gateway.watch.models import LiveState, Order
from gateway.watch.orders import RETIRE_LANE, Asked
from gateway.watch.snapshot import LiveTurn, Snapshot

pytestmark = pytest.mark.django_db

ONE, OTHER = uuid.uuid4(), uuid.uuid4()
DEAD_AFTER = timedelta(seconds=30)
BUSY = Snapshot(held=1, turns=[LiveTurn("t", 1.0, "sent", "ada", "laptop", "gpt-5.5")])


def replica(number: uuid.UUID, beat: timedelta = timedelta(0)) -> None:
    now = timezone.now()
    Replica.objects.create(id=number, host="here", process=1, started_at=now, heartbeat_at=now - beat)


def test_the_newest_snapshot_of_every_replica_that_is_alive_is_known() -> None:
    replica(ONE), replica(OTHER, timedelta(minutes=1))
    for number in (ONE, OTHER):
        store.tell(number, Snapshot(), timezone.now())
        store.tell(number, BUSY, timezone.now())
    assert store.snapshots(timezone.now(), DEAD_AFTER) == {ONE: BUSY}


def test_an_order_reaches_its_replica_until_it_is_done() -> None:
    order = Order.objects.create(replica=ONE, what=RETIRE_LANE, lane=7, by="admin")
    assert store.take_orders(ONE) == [Asked(order.id, RETIRE_LANE, 7)]
    assert store.take_orders(OTHER) == []
    store.finish_order(order.id, "done", timezone.now())
    assert store.take_orders(ONE) == []
    assert Order.objects.get().said == "done"


def test_what_is_a_day_old_is_forgotten() -> None:
    now = timezone.now()
    store.tell(ONE, BUSY, now - timedelta(days=2))
    store.tell(OTHER, BUSY, now)
    old = Order.objects.create(replica=ONE, what=RETIRE_LANE, lane=7, by="admin")
    Order.objects.filter(id=old.id).update(at=now - timedelta(days=2))
    assert store.forget_old(now) == 2
    assert LiveState.objects.get().replica == OTHER
