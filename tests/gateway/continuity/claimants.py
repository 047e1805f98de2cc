"""Processes that claim the same conversations at the same time.

`python -m tests.gateway.continuity.claimants PROCESSES SESSIONS` migrates the database that the environment names and
forks. Each process registers as a replica and claims every conversation, in batches like the ledger's, in an order of
its own. One line of JSON for each process tells what it was granted, or what went wrong.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import uuid
from datetime import timedelta

import django

BATCH = 25
TTL = timedelta(seconds=60)


def claim_all(replica: uuid.UUID, sessions: int, begin_at: float) -> list[tuple[str, int]]:
    from django.db import transaction

    from gateway.continuity import lease_store
    from gateway.continuity.leases import LeaseKey

    keys = [LeaseKey(1, f"thread-id:{number}") for number in range(sessions)]
    random.shuffle(keys)
    time.sleep(max(0.0, begin_at - time.time()))
    won = []
    for start in range(0, sessions, BATCH):
        with transaction.atomic():
            granted = lease_store.claim(replica, keys[start : start + BATCH], TTL)
        won += [(key.session, tenure.epoch) for key, tenure in granted.items()]
    return won


def run_as_claimant(sessions: int, begin_at: float) -> None:
    from django.db import Error, connections

    from gateway.replicas import store

    connections.close_all()
    replica = uuid.uuid4()
    try:
        store.register(replica, "")
        said: dict[str, object] = {"won": claim_all(replica, sessions, begin_at)}
    except Error as error:
        said = {"error": f"{type(error).__name__}: {error}"}
    os.write(1, (json.dumps(said) + "\n").encode())


def main(processes: int, sessions: int) -> None:
    django.setup()
    from django.core.management import call_command

    call_command("migrate", interactive=False, verbosity=0)
    begin_at = time.time() + 1.0
    children = []
    for _ in range(processes):
        child = os.fork()
        if child == 0:
            run_as_claimant(sessions, begin_at)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
