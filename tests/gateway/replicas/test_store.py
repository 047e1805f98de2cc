"""Which replicas are dead: those that fell silent, and those of this machine whose process is no more."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from gateway.models import Lease, Replica, Turn
from gateway.replicas import store

TTL = timedelta(seconds=30)
ELSEWHERE = "another-machine"


@pytest.fixture(scope="module")
def ended_process() -> int:
    """The id of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def replica(process: int, *, host: str | None = None, silent: float = 0.0, stopped: bool = False) -> uuid.UUID:
    now = datetime.now(UTC)
    row = Replica.objects.create(
        host=host or store.machine(),
        process=process,
        started_at=now,
        # SQLite's clock has whole milliseconds, and may be one behind this one.
        heartbeat_at=now - timedelta(seconds=silent, milliseconds=1),
        stopped_at=now if stopped else None,
    )
    return row.id


def dead() -> list[uuid.UUID]:
    return store.dead(TTL)


@pytest.mark.django_db
def test_a_replica_whose_process_runs_is_alive() -> None:
    replica(os.getpid(), silent=25)
    assert dead() == []


@pytest.mark.django_db
def test_a_replica_of_this_machine_whose_process_is_no_more_is_dead_at_once(ended_process: int) -> None:
    gone = replica(ended_process)
    assert dead() == [gone]


@pytest.mark.django_db
def test_of_another_machine_only_the_heartbeat_tells(ended_process: int) -> None:
    replica(ended_process, host=ELSEWHERE, silent=25)
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
    store.register(number, "")
    row = Replica.objects.get(id=number)
    assert (row.host, row.process) == (store.machine(), os.getpid())


def test_a_machine_is_told_from_the_containers_on_it() -> None:
    name = store.machine()
    if sys.platform == "linux" and os.readlink("/proc/self/ns/pid") != store.FIRST_NAMESPACE:
        assert os.readlink("/proc/self/ns/pid") in name
    assert name == store.machine()
    assert len(name) <= 255


def test_a_process_exists_until_it_has_ended(ended_process: int) -> None:
    assert store.process_exists(os.getpid())
    assert store.process_exists(1), "a process of somebody else exists as well"
    assert not store.process_exists(ended_process)


@pytest.mark.django_db
def test_the_leases_and_turns_of_a_process_that_died_are_taken_care_of_at_once(ended_process: int) -> None:
    gone, other = replica(ended_process), replica(os.getpid())
    for owner in (gone, other):
        Lease.objects.create(client=1, session=f"of {owner}", owner=owner, epoch=3, changed_at=datetime.now(UTC))
        Turn.objects.create(replica=owner, received_at=datetime.now(UTC), route="v1", downstream="sse")
    assert store.bury_process(ended_process) == 1
    assert dict(Lease.objects.values_list("session", "owner")) == {f"of {gone}": None, f"of {other}": other}
    assert set(Lease.objects.values_list("epoch", flat=True)) == {3}
    assert dict(Turn.objects.values_list("replica", "outcome")) == {gone: "interrupted", other: ""}
    assert Replica.objects.get(id=gone).stopped_at is not None


@pytest.mark.django_db
def test_an_address_of_one_machine_is_no_way_to_it_from_another() -> None:
    me = replica(os.getpid())
    urls = {"here": "http://127.0.0.1:1", ELSEWHERE: "http://127.0.0.1:2", "a third": "http://10.0.0.5:3"}
    for host, url in urls.items():
        row = replica(os.getpid(), host=None if host == "here" else host)
        Replica.objects.filter(id=row).update(url=url)
    assert {peer.url for peer in store.peers(me, TTL)} == {"http://127.0.0.1:1", "", "http://10.0.0.5:3"}


@pytest.mark.django_db
def test_one_that_was_killed_on_this_machine_is_no_peer(ended_process: int) -> None:
    me, lives = replica(os.getpid()), replica(os.getpid())
    replica(ended_process)
    assert [peer.id for peer in store.peers(me, TTL)] == [lives]
