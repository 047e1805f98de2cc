import pytest

from accounts.control import Happened, disable, enable, pause, resume
from accounts.models import Account, AccountEvent
from tests.accounts.cast import NOON, meanwhile, stored

pytestmark = pytest.mark.django_db

ACTIONS = {"pause": pause, "resume": resume, "disable": disable, "enable": enable}
ALLOWED = {
    "pause": {"active": "paused", "limited": "paused"},
    "resume": {"paused": "active", "limited": "active", "needs_login": "active"},
    "disable": dict.fromkeys(["active", "limited", "paused", "needs_login"], "disabled"),
    "enable": {"disabled": "active"},
}


def ada(state="active"):
    return stored("ada", state=state, state_until=NOON if state == "limited" else None, state_reason="a reason")


class TestDecisions:
    @pytest.mark.parametrize("state", ["active", "limited", "paused", "needs_login", "disabled"])
    @pytest.mark.parametrize("action", ACTIONS)
    def test_each_is_possible_in_some_states_and_refused_in_a_sentence_in_the_others(self, action, state):
        account = ada(state)
        happened = ACTIONS[action](account.id, "admin")
        account.refresh_from_db()
        assert happened.changed is (state in ALLOWED[action])
        assert account.state == ALLOWED[action].get(state, state)
        assert happened.text.endswith(".")
        assert AccountEvent.objects.count() == int(happened.changed)

    @pytest.mark.parametrize(
        ("action", "state", "text"),
        [
            ("pause", "active", "Paused ada."),
            ("resume", "paused", "Resumed ada."),
            ("disable", "active", "Disabled ada."),
            ("enable", "disabled", "Enabled ada."),
            ("pause", "paused", "ada is paused already."),
            ("resume", "active", "ada is active already."),
            ("resume", "disabled", "ada is disabled, so it cannot be resumed; enable it first."),
            ("enable", "paused", "ada is paused, so it cannot be enabled; resume it first."),
            (
                "pause",
                "needs_login",
                "ada needs a login, so it cannot be paused; sign it in with login_account first.",
            ),
        ],
    )
    def test_the_operator_reads_what_happened(self, action, state, text):
        assert ACTIONS[action](ada(state).id, "admin").text == text

    def test_the_reason_and_who_it_was_are_kept(self):
        account = ada()
        pause(account.id, "admin", "Holiday.")
        account.refresh_from_db()
        assert account.state_reason == "Holiday."
        event = AccountEvent.objects.get()
        assert (event.what, event.why, event.by) == ("paused", "Holiday.", "admin")

    def test_without_a_reason_it_is_who_did_it(self):
        account = ada()
        disable(account.id, "admin")
        account.refresh_from_db()
        assert account.state_reason == "disabled by admin"

    def test_an_active_account_keeps_no_reason_and_no_end(self):
        account = ada("limited")
        resume(account.id, "admin")
        account.refresh_from_db()
        assert (account.state_reason, account.state_until) == ("", None)
        assert AccountEvent.objects.get().what == "resumed"


class TestRaces:
    def test_what_traffic_finds_out_in_the_same_moment_does_not_win(self):
        account = ada()
        limited = {"state": "limited", "state_until": NOON}
        with meanwhile("UPDATE", lambda: Account.objects.update(**limited)):
            assert pause(account.id, "admin").changed
        account.refresh_from_db()
        assert account.state == "paused"

    def test_an_account_that_changes_all_the_time_is_told(self):
        account = ada()
        states = ["limited", "active"] * 3
        with meanwhile("UPDATE", lambda: Account.objects.update(state=states.pop(0)), times=5):
            assert (
                pause(account.id, "admin").text
                == f"Account {account.id} was changed by others all the time; try again."
            )

    def test_an_account_that_is_gone_is_told(self):
        assert pause(9, "admin") == Happened(False, "There is no account 9 any more.")
