"""What the operator sees of the pool and may change of it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client, RequestFactory
from django.utils import timezone

from accounts.models import Account, AccountEvent
from accounts.states import State
from dashboard.accounts import TONES, AccountAdmin
from tests.dashboard.cast import SECRET, account, limited

pytestmark = pytest.mark.django_db

LIST = "/admin/accounts/account/"


def page(client: Client, path: str = "") -> str:
    answer = client.get(LIST + path)
    assert answer.status_code == 200
    return answer.content.decode()


def act(client: Client, action: str, *accounts: Account) -> str:
    """Run an action on accounts, as the list's form does; the page that follows."""
    selected = {"action": action, "_selected_action": [each.pk for each in accounts]}
    return client.post(LIST, selected, follow=True).content.decode()


def test_a_limited_account_shows_its_state_its_reason_and_how_long_it_rests(admin_client: Client) -> None:
    limited("bo", hours=2.5)
    shown = page(admin_client)
    assert '<span class="word word-warning">limited</span>' in shown
    assert "usage limit reached" in shown
    assert "in 2\xa0hours" in shown


def test_a_limit_that_is_over_counts_as_active(admin_client: Client) -> None:
    limited("bo", hours=-1)
    shown = page(admin_client)
    assert '<span class="word word-good">active</span>' in shown
    assert "usage limit reached" not in shown


@pytest.mark.parametrize(("state", "names"), [("active", {"ada", "over"}), ("limited", {"bo"}), ("paused", {"cy"})])
def test_the_state_filter_asks_for_the_state_that_counts_now(admin_client: Client, state: str, names: set[str]) -> None:
    account("ada"), limited("over", hours=-1), limited("bo", hours=1), account("cy", State.PAUSED)
    answer = admin_client.get(LIST, {"state": state})
    assert {each.name for each in answer.context["cl"].result_list} == names


def test_when_an_account_was_last_used_is_told_in_words(admin_client: Client) -> None:
    ada = account("ada")
    assert "never" in page(admin_client)
    Account.objects.filter(pk=ada.pk).update(last_used_at=timezone.now() - timedelta(minutes=5))
    assert "5\xa0minutes ago" in page(admin_client)


def test_no_page_shows_a_secret_or_its_sealed_form(admin_client: Client) -> None:
    ada = account("ada")
    for path in ("", f"{ada.pk}/change/", f"{ada.pk}/history/"):
        shown = page(admin_client, path)
        assert SECRET not in shown
        assert ada.credentials not in shown
    assert "stored, sealed" in page(admin_client, f"{ada.pk}/change/")


def test_the_list_does_not_even_read_the_credentials(admin_client: Client) -> None:
    account("ada"), account("bo")
    answer = admin_client.get(LIST)
    assert all("credentials" in each.get_deferred_fields() for each in answer.context["cl"].result_list)


def test_the_form_changes_how_an_account_is_used_and_nothing_else(admin_client: Client) -> None:
    ada = account("ada")
    sent = {
        "priority": "5",
        "transport": "http",
        "max_streams": "2",
        "name": "eve",
        "state": "disabled",
        "base_url": "https://evil.example/v1",
        "credentials": "stolen",
    }
    admin_client.post(f"{LIST}{ada.pk}/change/", sent)
    after = Account.objects.get(pk=ada.pk)
    assert (after.priority, after.transport, after.max_streams) == (5, "http", 2)
    assert (after.name, after.state, after.base_url) == ("ada", "active", ada.base_url)
    assert after.credentials == ada.credentials
    assert after.revision == ada.revision + 1


def test_a_form_that_changes_nothing_writes_nothing(admin_client: Client) -> None:
    ada = account("ada")
    admin_client.post(f"{LIST}{ada.pk}/change/", {"priority": "100", "transport": "auto", "max_streams": ""})
    assert Account.objects.get(pk=ada.pk).revision == ada.revision


def test_saving_the_form_keeps_what_the_traffic_wrote_meanwhile(rf: RequestFactory) -> None:
    ada = account("ada")
    page_of_ada = AccountAdmin(Account, admin.site)
    request = rf.post("/")
    request.user = User(is_superuser=True, is_active=True)
    sent = {"priority": "5", "transport": "auto", "max_streams": ""}
    form = page_of_ada.get_form(request, ada, change=True)(sent, instance=ada)
    assert form.is_valid()
    Account.objects.filter(pk=ada.pk).update(state=State.LIMITED)
    page_of_ada.save_model(request, form.save(commit=False), form, change=True)
    after = Account.objects.get(pk=ada.pk)
    assert (after.priority, after.state) == (5, "limited")


def test_accounts_are_added_by_command_as_the_list_says(admin_client: Client) -> None:
    assert "manage.py add_account" in page(admin_client)
    assert admin_client.get(f"{LIST}add/").status_code == 403


def test_pausing_takes_an_account_out_and_says_so(admin_client: Client) -> None:
    ada, bo = account("ada"), limited("bo", hours=1)
    shown = act(admin_client, "pause", ada, bo)
    assert "Paused ada." in shown
    assert "Paused bo." in shown
    assert {(each.state, each.state_until) for each in Account.objects.all()} == {("paused", None)}
    assert Account.objects.get(pk=ada.pk).state_reason == "paused by admin"
    assert Account.objects.get(pk=ada.pk).revision == ada.revision + 1


def test_resuming_forgets_why_the_account_was_out(admin_client: Client) -> None:
    bo = limited("bo", hours=1)
    assert "Resumed bo." in act(admin_client, "resume", bo)
    bo.refresh_from_db()
    assert (bo.state, bo.state_reason, bo.state_until) == ("active", "", None)


def test_an_action_says_whom_it_left_alone_and_in_which_state(admin_client: Client) -> None:
    ada, cy = account("ada"), account("cy", State.NEEDS_LOGIN)
    shown = act(admin_client, "pause", ada, cy)
    assert "Paused ada." in shown
    assert "needs a login, so it cannot be paused" in shown
    cy.refresh_from_db()
    assert cy.state == "needs_login"


def test_a_disabled_account_comes_back_by_enabling_it_alone(admin_client: Client) -> None:
    ada = account("ada", State.DISABLED)
    assert "is disabled, so it cannot be resumed" in act(admin_client, "resume", ada)
    assert "Enabled ada." in act(admin_client, "enable", ada)
    ada.refresh_from_db()
    assert ada.state == "active"


def test_every_decision_is_an_event_of_its_account(admin_client: Client) -> None:
    act(admin_client, "pause", account("ada"))
    assert [(event.what, event.by) for event in AccountEvent.objects.all()] == [("paused", "admin")]


def test_who_decided_is_in_the_history(admin_client: Client) -> None:
    act(admin_client, "disable", account("ada"))
    assert [(str(entry.user), entry.get_change_message()) for entry in LogEntry.objects.all()] == [
        ("admin", "Disabled ada.")
    ]


def test_somebody_who_may_only_look_cannot_decide(client: Client) -> None:
    viewer = User.objects.create(username="viewer", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_account"))
    client.force_login(viewer)
    ada = account("ada")
    act(client, "disable", ada)
    ada.refresh_from_db()
    assert ada.state == "active"


def test_every_state_has_a_colour() -> None:
    assert TONES.keys() == set(State)
