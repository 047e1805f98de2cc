"""Rows of keys and replicas: synchronous functions for the database threads."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from gateway.keys import KeySnapshot, NewKey, new_key
from gateway.models import ApiKey, Replica, Turn
from gateway.turns.turn import Outcome


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
    Replica.objects.create(id=replica, host=socket.gethostname(), process=os.getpid(), started_at=now, heartbeat_at=now)


def beat(replica: uuid.UUID) -> bool:
    """The process is alive; False when its row is gone, which only a purge of dead replicas does."""
    return Replica.objects.filter(id=replica).update(heartbeat_at=datetime.now(UTC)) == 1


def unregister_replica(replica: uuid.UUID) -> None:
    """The process has ended in good order."""
    now = datetime.now(UTC)
    Replica.objects.filter(id=replica).update(heartbeat_at=now, stopped_at=now)


def close_dead_process(process: int) -> None:
    """The process with this id on this machine has died: end its replica and close its open turns."""
    now = datetime.now(UTC)
    dead = Replica.objects.filter(host=socket.gethostname(), process=process, stopped_at=None)
    for replica in dead.values_list("id", flat=True):
        Replica.objects.filter(id=replica).update(stopped_at=now)
        Turn.objects.filter(replica=replica, outcome="").update(outcome=Outcome.INTERRUPTED, cause="process_died")


def unapplied_migrations() -> int:
    """How many migrations the database lacks."""
    executor = MigrationExecutor(connection)
    return len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
