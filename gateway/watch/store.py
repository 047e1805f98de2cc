"""Snapshots and orders in the database: synchronous functions for the database threads."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache

import msgspec

from gateway.models import Replica
from gateway.prepared import Prepared
from gateway.watch.models import LiveState, Order
from gateway.watch.orders import Asked
from gateway.watch.snapshot import Snapshot

# Nobody reads what a replica told or was asked so long ago.
KEPT = timedelta(days=1)


def tell(replica: uuid.UUID, snapshot: Snapshot, now: datetime) -> None:
    """Replace what is known of the replica."""
    LiveState.objects.update_or_create(replica=replica, defaults={"at": now, "state": msgspec.to_builtins(snapshot)})


def take_orders(replica: uuid.UUID) -> Sequence[Asked]:
    """What was asked of the replica and is not done."""
    return [Asked(*order) for order in _waiting(replica).tuples()]


@lru_cache(maxsize=4)
def _waiting(replica: uuid.UUID) -> Prepared[Order]:
    waiting = Order.objects.filter(replica=replica, done_at=None).order_by("id")
    return Prepared(waiting, "id", "what", "lane")


def finish_order(order: int, said: str, now: datetime) -> None:
    """The order is done, and this came of it."""
    Order.objects.filter(id=order).update(done_at=now, said=said[:200])


def snapshots(now: datetime, dead_after: timedelta) -> Mapping[uuid.UUID, Snapshot]:
    """What each replica that is alive has told last."""
    alive = Replica.objects.filter(stopped_at=None, heartbeat_at__gt=now - dead_after).values("id")
    rows = LiveState.objects.filter(replica__in=alive)
    return {row.replica: msgspec.convert(row.state, Snapshot) for row in rows}


def forget_old(now: datetime) -> int:
    """Delete what dead replicas have told and orders that are done; how many rows."""
    states, _ = LiveState.objects.filter(at__lt=now - KEPT).delete()
    orders, _ = Order.objects.filter(at__lt=now - KEPT).delete()
    return states + orders
