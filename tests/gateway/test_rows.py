"""Which replicas are dead: those that fell silent, and those of this machine whose process is no more."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from gateway import rows
from gateway.models import Replica

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
DEAD_AFTER = timedelta(seconds=30)
ELSEWHERE = "another-machine"


@pytest.fixture(scope="module")
def ended_process() -> int:
    """The id of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def replica(process: int, *, host: str | None = None, silent: float = 0.0, stopped: bool = False) -> uuid.UUID:
    row = Replica.objects.create(
        host=host or rows.machine(),
        process=process,
        started_at=NOW,
        heartbeat_at=NOW - timedelta(seconds=silent),
        stopped_at=NOW if stopped else None,
    )
    return row.id


def dead() -> list[uuid.UUID]:
    return rows.dead_replicas(NOW, DEAD_AFTER)


@pytest.mark.django_db
def test_a_replica_whose_process_runs_is_alive() -> None:
    replica(os.getpid(), silent=29)
    assert dead() == []


@pytest.mark.django_db
def test_a_replica_of_this_machine_whose_process_is_no_more_is_dead_at_once(ended_process: int) -> None:
    gone = replica(ended_process)
    assert dead() == [gone]


@pytest.mark.django_db
def test_of_another_machine_only_the_heartbeat_tells(ended_process: int) -> None:
    replica(ended_process, host=ELSEWHERE, silent=29)
    silent = replica(ended_process, host=ELSEWHERE, silent=30)
    assert dead() == [silent]


@pytest.mark.django_db
def test_a_process_id_that_was_given_to_another_process_leaves_the_heartbeat_to_tell() -> None:
    silent = replica(os.getpid(), silent=30)
    assert dead() == [silent]


@pytest.mark.django_db
def test_a_replica_that_ended_in_good_order_is_not_dead_again(ended_process: int) -> None:
    replica(ended_process, silent=3600, stopped=True)
    assert dead() == []


@pytest.mark.django_db
def test_a_registered_process_is_known_as_this_one() -> None:
    number = uuid.uuid4()
    rows.register_replica(number, datetime.now(UTC))
    row = Replica.objects.get(id=number)
    assert (row.host, row.process) == (rows.machine(), os.getpid())


def test_a_machine_is_told_from_the_containers_on_it() -> None:
    name = rows.machine()
    if sys.platform == "linux" and os.readlink("/proc/self/ns/pid") != rows.FIRST_NAMESPACE:
        assert os.readlink("/proc/self/ns/pid") in name
    assert name == rows.machine()
    assert len(name) <= 255


def test_a_process_exists_until_it_has_ended(ended_process: int) -> None:
    assert rows.process_exists(os.getpid())
    assert rows.process_exists(1), "a process of somebody else exists as well"
    assert not rows.process_exists(ended_process)
