"""What the operator sees of the pool and may change of it."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client, RequestFactory
from django.utils import timezone

from accounts.circuit import CircuitState
from accounts.circuit_store import save_circuit
from accounts.circuits import CircuitChange, SharedCircuit
from accounts.credentials import OpenAICredentials, seal
from accounts.models import Account, AccountEvent
from accounts.states import State, What
from accounts.store import note_event
from dashboard.accounts.admin import AccountAdmin
from dashboard.overview.pool import CIRCUIT_TONES, STATE_TONES
from gateway.drains import finish_drains
from gateway.models import Replica
from gateway.watch.snapshot import LiveAccount, Snapshot
from gateway.watch.store import tell
from tests.dashboard.cast import REPLICA, SECRET, account, limited, turn

pytestmark = pytest.mark.django_db

LIST = "/admin/accounts/account/"
EVENTS = "/admin/accounts/accountevent/"


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


def opened(name: str, seconds: float) -> Account:
    """An account whose circuit opened a minute ago, for so many seconds from now on."""
    made = account(name)
    now = timezone.now().timestamp()
    circuit = SharedCircuit(
        1, "", CircuitState.OPEN, since=now - 60, until=now + seconds, ejections=2, failed_as="upstream_lost"
    )
    save_circuit(CircuitChange(made.id, circuit, "traffic"))
    return made


def test_circuit_and_windows_are_in_the_list(admin_client: Client) -> None:
    bo = opened("bo", 120)
    reset = timezone.now().timestamp() + 7200
    quota = {"windows": {"codex/primary": {"seen_at": 0, "used_percent": 42.0, "minutes": 300, "resets_at": reset}}}
    Account.objects.filter(pk=bo.pk).update(quota=quota)
    shown = page(admin_client)
    assert '<span class="word word-bad">open</span>' in shown
    assert ">42 %<" in shown
    assert "opened 2 times in a row; the newest failure: upstream_lost" in page(admin_client, f"{bo.pk}/change/")


@pytest.mark.parametrize(("circuit", "names"), [("open", {"bo"}), ("half open", {"cy"}), ("closed", {"ada"})])
def test_the_filter_of_recent_turns_asks_for_what_counts_now(
    admin_client: Client, circuit: str, names: set[str]
) -> None:
    account("ada"), opened("bo", 60), opened("cy", -1)
    answer = admin_client.get(LIST, {"circuit": circuit})
    assert {each.name for each in answer.context["cl"].result_list} == names


@pytest.mark.parametrize(
    ("used", "names"), [("hour", {"ada"}), ("day", {"ada", "bo"}), ("idle", {"cy"}), ("never", {"dee"})]
)
def test_the_filter_of_use_goes_by_the_last_turn(admin_client: Client, used: str, names: set[str]) -> None:
    for name, hours in (("ada", 0.1), ("bo", 5), ("cy", 50)):
        Account.objects.filter(pk=account(name).pk).update(last_used_at=timezone.now() - timedelta(hours=hours))
    account("dee")
    answer = admin_client.get(LIST, {"used": used})
    assert {each.name for each in answer.context["cl"].result_list} == names


def starts(replica: uuid.UUID) -> None:
    """A process of the gateway is alive."""
    now = timezone.now()
    Replica.objects.create(id=replica, host="here", process=1, started_at=now, heartbeat_at=now)


def test_what_all_processes_carry_is_in_the_list(admin_client: Client) -> None:
    ada = account("ada")
    for _ in range(2):
        replica = uuid.uuid4()
        starts(replica)
        tell(replica, Snapshot(accounts={str(ada.id): LiveAccount(2, 1, 3)}), timezone.now())
    shown = page(admin_client)
    assert '<td class="field-active">4</td><td class="field-waiting">2</td>' in shown


def test_the_list_costs_the_same_queries_whatever_the_size_of_the_pool(
    admin_client: Client, django_assert_max_num_queries: Any
) -> None:
    for number in range(30):
        account(f"account-{number}")
    with django_assert_max_num_queries(12):
        page(admin_client)


def test_a_circuit_is_opened_and_reset_by_hand_and_the_events_name_who_did_it(admin_client: Client) -> None:
    ada = account("ada")
    assert "Opened the circuit of ada for 5 minutes." in act(admin_client, "open_circuit", ada)
    assert "The circuit of ada is open already." in act(admin_client, "open_circuit", ada)
    assert "Reset the circuit of ada" in act(admin_client, "reset_circuit", ada)
    told = [(event.what, event.by) for event in AccountEvent.objects.order_by("id")]
    assert told == [("circuit_opened", "admin"), ("circuit_closed", "admin")]


def test_draining_pauses_and_tells_when_the_last_turn_has_ended(admin_client: Client) -> None:
    ada = account("ada")
    assert "Drained ada. What runs may end." in act(admin_client, "drain", ada)
    assert '<span class="word word-busy">draining</span>' in page(admin_client)
    starts(uuid.UUID(REPLICA))
    running = turn(outcome="", account_id=ada.id)
    later = timezone.now() + timedelta(minutes=1)
    assert finish_drains(later) == "No account has been drained."
    running.outcome = "completed"
    running.save()
    assert finish_drains(timezone.now()) == "No account has been drained."
    assert finish_drains(later) == "Drained: ada."
    assert '<span class="word word-off">paused</span>' in page(admin_client)
    told = [(event.what, event.by) for event in AccountEvent.objects.order_by("id")]
    assert told == [("draining", "admin"), ("drained", "upkeep")]


def test_a_token_that_cannot_be_refreshed_is_told(admin_client: Client) -> None:
    shown = act(admin_client, "refresh_token", account("ada"))
    assert "The token of ada was not refreshed: The account has no sign-in that could be refreshed." in shown


def test_a_probe_tells_what_the_upstream_said(admin_client: Client) -> None:
    ada = account("ada", base_url="http://127.0.0.1:9/v1")
    Account.objects.update(credentials=seal(OpenAICredentials(SECRET), settings.TOKEN_KEYS))
    assert "Probed ada: 127.0.0.1 could not be asked (ConnectError)." in act(admin_client, "probe", ada)
    assert [(event.what, event.by) for event in AccountEvent.objects.all()] == [("probed", "admin")]


def test_what_happened_is_on_the_page_of_the_account_and_in_the_list_of_events(admin_client: Client) -> None:
    ada = account("ada")
    act(admin_client, "pause", ada)
    note_event(ada.id, What.LIMITED, "usage limit reached", uuid.UUID(int=5))
    for shown in (page(admin_client, f"{ada.pk}/change/"), admin_client.get(EVENTS).content.decode()):
        assert "usage limit reached" in shown
        assert "paused" in shown
        assert f"/admin/gateway/turn/{uuid.UUID(int=5)}/change/" in shown
    assert admin_client.get(f"{EVENTS}add/").status_code == 403


def test_a_proxy_goes_in_by_the_form_and_its_password_never_comes_out(admin_client: Client) -> None:
    ada = account("ada")
    form = {"priority": "100", "transport": "auto", "max_streams": ""}
    url = f"{LIST}{ada.pk}/change/"
    admin_client.post(url, {**form, "new_proxy": "socks5://me:hidden-word@proxy.example:1080"})
    shown = page(admin_client, f"{ada.pk}/change/")
    assert "socks5://…@proxy.example:1080" in shown
    assert "hidden-word" not in shown + Account.objects.get().proxy
    assert "must begin with" in admin_client.post(url, {**form, "new_proxy": "ftp://x:1"}).content.decode()
    admin_client.post(url, {**form, "no_proxy": "on"})
    assert Account.objects.get().proxy == ""
    assert [event.what for event in AccountEvent.objects.all()] == ["proxy_changed"] * 2


def test_every_state_has_a_colour() -> None:
    assert STATE_TONES.keys() == set(State)
    assert CIRCUIT_TONES.keys() == set(CircuitState)


@pytest.mark.parametrize(
    ("state", "offered", "not_offered"),
    [
        (State.ACTIVE, {"pause", "drain", "probe"}, {"resume", "enable", "reset_circuit", "refresh_token"}),
        (State.PAUSED, {"resume", "probe"}, {"pause", "drain"}),
        (State.DISABLED, {"enable"}, {"pause", "resume"}),
        (State.NEEDS_LOGIN, {"probe"}, {"pause", "resume"}),
    ],
)
def test_an_accounts_page_offers_what_suits_its_state(
    admin_client: Client, state: State, offered: set[str], not_offered: set[str]
) -> None:
    made = account("ada", state, state_reason="" if state is State.ACTIVE else "because")
    shown = admin_client.get(f"/admin/accounts/account/{made.pk}/change/").content.decode()
    buttons = set(re.findall(r'<button name="action" value="(\w+)"', shown))
    assert offered <= buttons
    assert not not_offered & buttons


def test_a_button_of_the_page_acts_and_leads_back_to_it(admin_client: Client) -> None:
    made = account("ada")
    act = {"action": "pause", "_selected_action": made.pk, "back": made.pk}
    answer = admin_client.post("/admin/accounts/account/", act, follow=True)
    assert answer.redirect_chain == [(f"/admin/accounts/account/{made.pk}/change/", 302)]
    assert "Paused ada." in answer.content.decode()
    assert Account.objects.get().state == State.PAUSED
