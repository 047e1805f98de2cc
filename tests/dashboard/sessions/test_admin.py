"""What is tied to which account: found by the client's own name, moved by hand, purged after a look."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import timezone

from accounts.states import State
from dashboard.sessions.admin import OPERATOR, release_owner
from gateway.continuity.rules import SessionKind, Strength, digest
from gateway.continuity.store import load_sessions
from gateway.models import ApiKey, Lease, Replica, Session
from gateway.rows import create_key
from gateway.watch.snapshot import LiveLane, Snapshot
from gateway.watch.store import tell
from tests.dashboard.cast import account

pytestmark = pytest.mark.django_db

LIST = "/admin/gateway/session/"
PURGE = f"{LIST}purge/"
LONG = timedelta(days=2)


def key(name: str = "laptop") -> int:
    create_key(name)
    return ApiKey.objects.get(name=name).pk


def session(client: int, value: str, kind: SessionKind = SessionKind.THREAD, **fields: Any) -> Session:
    """A soft session of a minute ago, unless `fields` say otherwise."""
    given = {
        "client": client,
        "kind": kind,
        "digest": digest(client, kind, value),
        "account_id": 1,
        "strength": Strength.SOFT,
        "used_at": timezone.now() - timedelta(minutes=1),
        "replica": uuid.UUID(int=1),
        **fields,
    }
    return Session.objects.create(**given)


def page(client: Client, **query: str) -> str:
    answer = client.get(LIST, query)
    assert answer.status_code == 200
    return answer.content.decode()


def cells(text: str, column: str) -> list[str]:
    return [re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(rf'field-{column}"?[^>]*>(.*?)</t[dh]>', text)]


def act(client: Client, *sessions: Session, action: str = "move", **fields: Any) -> str:
    posted = {"action": action, "_selected_action": [each.pk for each in sessions], **fields}
    return client.post(LIST, posted, follow=True).content.decode()


def onlooker() -> Client:
    """Somebody who may look at sessions and do nothing."""
    user = User.objects.create(username="onlooker", is_staff=True)
    user.user_permissions.add(Permission.objects.get(content_type__app_label="gateway", codename="view_session"))
    client = Client()
    client.force_login(user)
    return client


def test_the_list_says_what_is_tied_to_which_account_and_how(admin_client: Client) -> None:
    ada = account("ada")
    made = session(key(), "t", account_id=ada.pk, strength=Strength.HARD)
    shown = page(admin_client)
    row = {column: cells(shown, column) for column in ("name", "client", "strength", "account", "last_used")}
    assert row == {
        "name": [f"{made.digest[:12]}thread-id"],
        "client": ["laptop"],
        "strength": ["hard"],
        "account": ["ada"],
        "last_used": ["1\xa0minute ago"],
    }


def test_what_belongs_to_a_removed_account_or_is_abandoned_says_so(admin_client: Client) -> None:
    session(1, "t", account_id=77, strength=Strength.HARD, abandoned_at=timezone.now())
    shown = page(admin_client)
    assert (cells(shown, "account"), cells(shown, "strength")) == (["77 (removed)"], ["abandoned"])


def test_a_live_lane_shows_its_generation(admin_client: Client) -> None:
    row, now = session(1, "t"), timezone.now()
    replica = Replica.objects.create(host="h", process=1, started_at=now, heartbeat_at=now)
    lanes = [LiveLane(1, 1, f"thread-id:{row.digest}", generation, "open") for generation in (4, 7, 5)]
    tell(replica.id, Snapshot(lanes=lanes), now)
    assert cells(page(admin_client), "generation") == ["7"]


def process(number: int, age: float = 0.0) -> Replica:
    at = timezone.now() - timedelta(seconds=age)
    return Replica.objects.create(host="h", process=number, started_at=at, heartbeat_at=at)


def lease(session: Session, owner: uuid.UUID | None, epoch: int) -> Lease:
    name, now = f"{session.kind}:{session.digest}", timezone.now()
    return Lease.objects.create(client=session.client, session=name, owner=owner, epoch=epoch, changed_at=now)


def test_the_owner_of_a_conversations_lanes_is_shown_with_its_epoch_and_the_time_left(admin_client: Client) -> None:
    names = ("held", "expired", "free", "none")
    held, expired, free, _ = [session(1, n, used_at=timezone.now() - timedelta(hours=h)) for h, n in enumerate(names)]
    lease(held, process(4711, 9.6).id, 3)
    lease(expired, process(4712, 300).id, 4)
    lease(free, None, 5)
    shown = page(admin_client)
    assert cells(shown, "owner") == ["h:4711", "–", "–", "–"]  # noqa: RUF001
    assert cells(shown, "epoch") == ["3", "4", "5", "–"]  # noqa: RUF001
    assert cells(shown, "left") == ["20 s left", "expired", "free", "–"]  # noqa: RUF001


def test_an_owner_is_released_unless_another_has_claimed_it_since(admin_client: Client) -> None:
    row, other = session(1, "t"), session(1, "other")
    held = lease(row, process(1).id, 3)
    shown = act(admin_client, row, other, action="release")
    assert "Released 1" in shown
    assert "1 had no owner" in shown
    held.refresh_from_db()
    assert (held.owner, held.epoch) == (None, 3)
    assert LogEntry.objects.get().change_message == "Owner released."


def test_what_changed_since_it_was_looked_at_is_not_released() -> None:
    row = session(1, "t")
    held = lease(row, process(1).id, 3)
    row.__dict__.update(lease_id=held.pk, lease_owner=held.owner, lease_epoch=2)
    assert not release_owner(row)
    row.__dict__.update(lease_epoch=3)
    assert release_owner(row)


@pytest.mark.parametrize("kind", list(SessionKind))
def test_a_session_is_found_by_the_name_that_its_client_shows(admin_client: Client, kind: SessionKind) -> None:
    laptop, phone = key("laptop"), key("phone")
    session(laptop, "01a2-mine", kind)
    session(phone, "01a2-mine", kind)
    session(laptop, "other", kind)
    assert cells(page(admin_client, q=" 01a2-mine "), "client") == ["phone", "laptop"]
    assert cells(page(admin_client, q="01a2"), "client") == []


def test_no_page_shows_what_the_client_said(admin_client: Client) -> None:
    row = session(key(), "01a2-mine")
    assert "01a2-mine" not in page(admin_client)
    assert "01a2-mine" not in admin_client.get(f"{LIST}{row.pk}/change/").content.decode()


def test_soft_ones_are_moved_and_every_gateway_learns_it(admin_client: Client) -> None:
    ada, bo = account("ada").pk, account("bo")
    soft, hard = (session(1, each, account_id=ada, strength=Strength(each)) for each in ("soft", "hard"))
    shown = act(admin_client, soft, hard, to=bo.pk)
    assert "Moved 1 to bo." in shown
    assert "Left 1 where they are" in shown
    soft.refresh_from_db()
    hard.refresh_from_db()
    assert (soft.account_id, soft.replica, hard.account_id) == (bo.pk, OPERATOR, ada)
    learned = load_sessions(uuid.UUID(int=1), since=soft.used_at.timestamp() - 1, soft_since=0)
    assert [each.account_id for each in learned] == [bo.pk]
    assert LogEntry.objects.get().change_message == "Moved to bo."


def test_moving_needs_an_account_to_move_to(admin_client: Client) -> None:
    soft = session(1, "soft")
    assert "Choose the account" in act(admin_client, soft, to="")
    soft.refresh_from_db()
    assert soft.account_id == 1


def token(shown: str) -> str:
    found = re.search(r'name="token" value="([^"]+)"', shown)
    assert found is not None
    return found[1]


def stale() -> list[Session]:
    """One to be marked, one expired, one turn state, one abandoned, one that stays, and a dead replica's lease."""
    lease(session(1, "lanes"), process(9, 300).id, 1)
    old = timezone.now() - LONG
    paused = account("paused", State.PAUSED).pk
    return [
        session(1, "hard", strength=Strength.HARD, account_id=paused, used_at=old),
        session(1, "soft", used_at=old),
        session(1, "ts", SessionKind.TURN_STATE, strength=Strength.HARD, used_at=old),
        session(1, "left", strength=Strength.HARD, account_id=77, used_at=old, abandoned_at=old),
        session(1, "fresh"),
    ]


def test_the_preview_shows_exactly_what_goes_then(admin_client: Client) -> None:
    marked, soft, turn_state, abandoned, fresh = stale()
    shown = admin_client.get(PURGE).content.decode()
    for row in (marked, soft, turn_state, abandoned):
        assert shown.count(row.digest[:12]) == 1
    assert fresh.digest[:12] not in shown
    assert "lease of thread-id" in shown
    used_meanwhile = Session.objects.filter(pk=soft.pk)
    used_meanwhile.update(used_at=timezone.now())
    late = session(1, "late", used_at=timezone.now() - LONG)
    said = admin_client.post(PURGE, {"token": token(shown)}, follow=True).content.decode()
    assert "0 soft ones expired; 1 turn states of turns long over (1 turn-state)" in said
    kept = set(Session.objects.exclude(digest=digest(1, SessionKind.THREAD, "lanes")).values_list("pk", flat=True))
    assert kept == {marked.pk, soft.pk, fresh.pk, late.pk}
    assert not Lease.objects.exists()
    assert Session.objects.get(pk=marked.pk).abandoned_at is not None
    assert LogEntry.objects.get().change_message.startswith("Purged: ")


def test_a_preview_that_is_not_ours_purges_nothing(admin_client: Client) -> None:
    stale()
    given = token(admin_client.get(PURGE).content.decode())
    for sent in ("", given[:-3] + "abc"):
        assert "too old" in admin_client.post(PURGE, {"token": sent}, follow=True).content.decode()
    assert Session.objects.count() == 6


def test_an_onlooker_sees_the_list_and_can_do_nothing(db: None) -> None:
    soft, client = session(1, "soft", used_at=timezone.now() - LONG), onlooker()
    assert "Purge stale" not in page(client)
    act(client, soft, to=account("bo").pk)
    assert client.get(PURGE).status_code == 403
    assert client.post(PURGE, {"token": ""}).status_code == 403
    soft.refresh_from_db()
    assert soft.account_id == 1


def test_nobody_adds_changes_or_deletes_a_session_by_form(admin_client: Client) -> None:
    row = session(1, "t")
    assert admin_client.get(f"{LIST}add/").status_code == 403
    assert admin_client.post(f"{LIST}{row.pk}/change/", {"account_id": 9}).status_code == 403
    assert admin_client.post(f"{LIST}{row.pk}/delete/", {"post": "yes"}).status_code == 403


def test_a_page_of_many_sessions_asks_the_database_a_few_times(
    admin_client: Client, django_assert_max_num_queries: Any
) -> None:
    for number in range(40):
        session(1, str(number))
    page(admin_client)
    with django_assert_max_num_queries(16):
        page(admin_client)
