"""Rows of replicas: who is alive, where others reach it, and what it uses. For the database threads.

Time is the database's clock, the one that all replicas share.
"""

from __future__ import annotations

import os
import socket
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from django.db import transaction
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet
from django.db.models.functions import Now

from gateway.models import Lease, Replica, Turn
from gateway.prepared import Prepared
from gateway.replicas.shares import Use
from gateway.turns.turn import Outcome

# What Linux calls the process namespace outside of all containers (PROC_PID_INIT_INO).
FIRST_NAMESPACE = "pid:[4026531836]"


@dataclass(frozen=True, slots=True)
class Peer:
    """Another replica that is alive. `url` is empty when it cannot be reached from here."""

    id: uuid.UUID
    url: str
    use: Use


def register(replica: uuid.UUID, url: str) -> None:
    """This process exists from now on."""
    Replica.objects.create(
        id=replica, host=machine(), process=os.getpid(), url=url, started_at=datetime.now(UTC), heartbeat_at=Now()
    )


def beat(replica: uuid.UUID, use: Use, ttl: timedelta) -> bool | None:
    """The process is alive; whether that was said in time, None when its row is gone, which only a purge does.

    A process that is late may have been taken for dead. It is alive again, and owns nothing any more.
    """
    if alive(ttl).filter(id=replica).update(heartbeat_at=Now(), use=use.to_json()):
        return True
    with transaction.atomic():
        free_leases(Lease.objects.filter(owner=replica))
        revived = Replica.objects.filter(id=replica).update(heartbeat_at=Now(), stopped_at=None, use=use.to_json())
    return False if revived else None


def unregister(replica: uuid.UUID) -> None:
    """The process has ended in good order, and owns nothing any more."""
    with transaction.atomic():
        free_leases(Lease.objects.filter(owner=replica))
        Replica.objects.filter(id=replica).update(heartbeat_at=Now(), stopped_at=Now())


def peers(replica: uuid.UUID, ttl: timedelta) -> Sequence[Peer]:
    """The other replicas that are alive, always in the same order; one that was killed on this machine is not."""
    here = machine()
    return [
        Peer(row.id, row.url if _reachable(row, here) else "", Use.from_json(row.use))
        for row in _others(replica, ttl).rows()
        if not _was_killed(row, here)
    ]


@lru_cache(maxsize=4)
def _others(replica: uuid.UUID, ttl: timedelta) -> Prepared[Replica]:
    return Prepared(alive(ttl).exclude(id=replica).order_by("started_at", "id"))


def alive(ttl: timedelta) -> QuerySet[Replica]:
    """Replicas whose leases count."""
    return Replica.objects.filter(stopped_at=None, heartbeat_at__gt=Now() - ttl)


def leads(replica: uuid.UUID, ttl: timedelta) -> bool:
    """Whether this replica is the one that keeps the house: the oldest of those that are alive."""
    return alive(ttl).order_by("started_at", "id").values_list("id", flat=True).first() == replica


def dead(ttl: timedelta) -> list[uuid.UUID]:
    """Replicas that ended without saying so.

    Their last heartbeat is older than `ttl`, or they ran on this machine and their process is no more: then a gateway
    that was killed and started again need not wait for its own heartbeat to grow old.
    """
    here = machine()
    late = ExpressionWrapper(Q(heartbeat_at__lte=Now() - ttl), output_field=BooleanField())
    return [
        row.id
        for row in Replica.objects.filter(stopped_at=None).annotate(late=late)
        if row.late or _was_killed(row, here)
    ]


def _was_killed(row: Replica, here: str) -> bool:
    """Whether the replica ran on this machine and its process is no more."""
    return row.host == here and not process_exists(row.process)


def _reachable(row: Replica, here: str) -> bool:
    """An address of this machine alone means another process on another machine."""
    return row.host == here or not is_loopback(row.url)


def is_loopback(url: str) -> bool:
    """Whether the URL is an address that only this machine can reach."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bury(replicas: Sequence[uuid.UUID]) -> int:
    """End replicas that have died: their leases are free, their open turns interrupted; how many turns there were."""
    with transaction.atomic():
        closed = interrupt(Turn.objects.filter(replica__in=replicas))
        free_leases(Lease.objects.filter(owner__in=replicas))
        Replica.objects.filter(id__in=replicas).update(stopped_at=Now())
    return closed


def bury_process(process: int) -> int:
    """The process with this id on this machine has died."""
    rows = Replica.objects.filter(host=machine(), process=process, stopped_at=None)
    return bury(list(rows.values_list("id", flat=True)))


def free_leases(leases: QuerySet[Lease]) -> None:
    """Nobody holds these leases any more; their epochs stay, so that the next claim raises them."""
    leases.update(owner=None, changed_at=Now())


def interrupt(turns: QuerySet[Turn]) -> int:
    """Close those of the turns that are open; how many there were."""
    return turns.filter(outcome="").update(outcome=Outcome.INTERRUPTED, cause="process_died", settled_at=Now())


def machine() -> str:
    """This machine as replicas name it. Process ids are of one process namespace, so a container names that too."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = FIRST_NAMESPACE
    return socket.gethostname() + ("" if namespace == FIRST_NAMESPACE else f" {namespace}")


def process_exists(process: int) -> bool:
    """Whether this machine runs a process with this id, or that cannot be told."""
    if sys.platform == "win32":
        return True  # there, signal 0 is no question but Control-C
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
