"""Lanes and replicas, and the one thing that can be done to them."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import timezone

from dashboard.processes import PHASE_TONES
from gateway.models import Replica
from gateway.upstream.lane import LaneState
from gateway.watch.models import Order
from gateway.watch.snapshot import LiveLane, Snapshot
from gateway.watch.store import tell
from tests.dashboard.cast import account

pytestmark = pytest.mark.django_db

LANES, REPLICAS = "/admin/lanes/", "/admin/replicas/"


def replica(*lanes: LiveLane, beat: timedelta = timedelta(0), stopped: bool = False, hidden: int = 0) -> uuid.UUID:
    """A process that tells of these lanes, and of `hidden` more."""
    now, number = timezone.now(), uuid.uuid4()
    Replica.objects.create(
        id=number,
        host="here",
        process=len(lanes) + 1,
        started_at=now - beat - timedelta(hours=2),
        heartbeat_at=now - beat,
        stopped_at=now - beat if stopped else None,
    )
    tell(number, Snapshot(held=3, open_lanes=len(lanes) + hidden, lanes=list(lanes)), now)
    return number


def lane(phase: str = "open", generation: int = 7, **fields: object) -> LiveLane:
    now = timezone.now().timestamp()
    given = {"opened_at": now - 300, "idle_since": now - 20, "rtt_ms": 12, "sent_bytes": 2000, "received_bytes": 90_000}
    return LiveLane(
        account=1, client=1, session="thread:abc", generation=generation, phase=phase, **{**given, **fields}
    )


def page(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200
    return answer.content.decode()


def somebody(client: Client, *permissions: str) -> None:
    user = User.objects.create(username="viewer", is_staff=True)
    user.user_permissions.add(*Permission.objects.filter(codename__in=permissions))
    client.force_login(user)


def test_a_lane_shows_whose_it_is_and_what_went_over_it(admin_client: Client) -> None:
    account("ada", id=1)
    replica(lane())
    shown = page(admin_client, LANES)
    for part in ("ada", "thread:abc", "open", "5 min", "20 s", "12 ms", "2 kB", "90 kB", "here:2"):
        assert part in shown


def test_lanes_that_carry_something_come_first_and_the_rest_is_counted(admin_client: Client) -> None:
    replica(lane(generation=1), lane("busy", generation=2, idle_since=None), hidden=5)
    shown = page(admin_client, LANES)
    assert shown.index(">busy<") < shown.index(">open<")
    assert "and 5 more that are idle" in shown


def test_the_lane_of_a_client_socket_says_so(admin_client: Client) -> None:
    replica(LiveLane(1, 1, "", 1, "busy"))
    assert "client&#x27;s own" in page(admin_client, LANES)


def test_every_phase_of_a_lane_has_a_colour() -> None:
    assert PHASE_TONES.keys() == set(LaneState) - {LaneState.CLOSED}


def test_without_lanes_the_page_says_so(admin_client: Client) -> None:
    assert "No lane is open." in page(admin_client, LANES)


def test_retiring_a_lane_asks_the_replica_that_has_it(admin_client: Client) -> None:
    number = replica(lane())
    shown = admin_client.post(LANES, {"lane": f"{number}:7"}, follow=True).content.decode()
    assert "Asked for lane 7 to be retired." in shown
    order = Order.objects.get()
    assert (order.replica, order.lane, order.by) == (number, 7, "admin")
    assert LogEntry.objects.get().get_change_message() == "Asked for lane 7 to be retired."
    Order.objects.update(said="The lane is closed.")
    assert "The lane is closed." in page(admin_client, LANES)


@pytest.mark.parametrize("named", ["", "7", "nonsense:7", "00000000-0000-4000-8000-000000000000:x"])
def test_what_names_no_lane_asks_for_nothing(admin_client: Client, named: str) -> None:
    assert admin_client.post(LANES, {"lane": named}).status_code == 302
    assert not Order.objects.exists()


def test_looking_and_acting_are_two_permissions(client: Client) -> None:
    number = replica(lane())
    somebody(client, "view_replica")
    assert 'class="may-not-act"' in page(client, LANES)
    assert client.post(LANES, {"lane": f"{number}:7"}).status_code == 403
    assert not Order.objects.exists()


def test_without_a_permission_there_is_nothing_to_see(client: Client) -> None:
    somebody(client, "view_turn")
    assert client.get(LANES).status_code == client.get(REPLICAS).status_code == 403


def test_replicas_are_alive_dead_or_stopped(admin_client: Client) -> None:
    replica(), replica(beat=timedelta(minutes=5)), replica(beat=timedelta(hours=1), stopped=True)
    replica(beat=timedelta(days=3), stopped=True)
    shown = page(admin_client, REPLICAS)
    places = [shown.index(f">{word}<") for word in ("alive", "dead", "stopped")]
    assert places[0] < min(places[1:])
    assert shown.count("<article") == 3
