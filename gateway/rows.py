"""Rows of keys and replicas: synchronous functions for the database threads."""

from __future__ import annotations

import os
import socket
import sys
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from gateway.keys import KeySnapshot, NewKey, new_key
from gateway.models import ApiKey, Replica, Turn
from gateway.turns.turn import Outcome

# What Linux calls the process namespace outside of all containers (PROC_PID_INIT_INO).
FIRST_NAMESPACE = "pid:[4026531836]"


def load_keys() -> Sequence[KeySnapshot]:
    """All keys, off ones included."""
    return [KeySnapshot(key.id, key.name, key.lookup, key.digest, key.enabled) for key in ApiKey.objects.all()]


def create_key(name: str) -> NewKey:
    """Store a new key; its text is in what is returned and nowhere else. Raises `IntegrityError` for a taken name."""
    key = new_key()
    ApiKey.objects.create(name=name, lookup=key.lookup, digest=key.digest)
    return key


def mark_used(used: Mapping[int, datetime]) -> None:
    """Note when keys were last used; that is no change that a gateway must notice."""
    for key_id, moment in used.items():
        ApiKey.objects.filter(id=key_id).update(last_used_at=moment)


def register_replica(replica: uuid.UUID, now: datetime) -> None:
    """This process exists from now on."""
    Replica.objects.create(id=replica, host=machine(), process=os.getpid(), started_at=now, heartbeat_at=now)


def beat(replica: uuid.UUID) -> bool:
    """The process is alive, whoever took it for dead; False when its row is gone, which only a purge does."""
    return Replica.objects.filter(id=replica).update(heartbeat_at=datetime.now(UTC), stopped_at=None) == 1


def unregister_replica(replica: uuid.UUID) -> None:
    """The process has ended in good order."""
    now = datetime.now(UTC)
    Replica.objects.filter(id=replica).update(heartbeat_at=now, stopped_at=now)


def close_dead_process(process: int) -> None:
    """The process with this id on this machine has died: end its replica and close its open turns."""
    now = datetime.now(UTC)
    dead = Replica.objects.filter(host=machine(), process=process, stopped_at=None)
    for replica in dead.values_list("id", flat=True):
        Replica.objects.filter(id=replica).update(stopped_at=now)
        Turn.objects.filter(replica=replica, outcome="").update(outcome=Outcome.INTERRUPTED, cause="process_died")


def dead_replicas(now: datetime, dead_after: timedelta) -> list[uuid.UUID]:
    """Replicas that ended without saying so.

    Their last heartbeat is older than `dead_after`, or they ran on this machine and their process is no more: then
    a gateway that was killed and started again need not wait for its own heartbeat to grow old.
    """
    here = machine()
    return [
        replica.id
        for replica in Replica.objects.filter(stopped_at=None)
        if replica.heartbeat_at <= now - dead_after or (replica.host == here and not process_exists(replica.process))
    ]


def leads(replica: uuid.UUID, now: datetime, dead_after: timedelta) -> bool:
    """Whether this replica is the one that keeps the house: the oldest of those that are alive."""
    alive = Replica.objects.filter(stopped_at=None, heartbeat_at__gt=now - dead_after)
    oldest = alive.order_by("started_at", "id").values_list("id", flat=True).first()
    return oldest == replica


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


def unapplied_migrations() -> int:
    """How many migrations the database lacks."""
    executor = MigrationExecutor(connection)
    return len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
