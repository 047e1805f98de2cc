from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from django.core.exceptions import ObjectDoesNotExist
from django.db import IntegrityError, connection
from django.db.models import Q
from django.test.utils import CaptureQueriesContext
from structlog.testing import capture_logs

from accounts.auth_json import Imported
from accounts.credentials import (
    CodexCredentials,
    InvalidTokenKey,
    OpenAICredentials,
    check_token_key,
    seal,
    seal_text,
    unseal,
)
from accounts.models import Account, AccountEvent, TokenLease
from accounts.quota import NOTHING_KNOWN, ModelLimit, Plan, Quota, Window, merge
from accounts.registry import AccountSnapshot, StateChange
from accounts.states import IllegalTransition, Kind, State, Transport, What
from accounts.store import (
    NameTaken,
    Options,
    RefusedAccount,
    add_account,
    change_state,
    load_snapshots,
    mark_used,
    note_event,
    replace_credentials,
    require_free_name,
    save_quota,
    set_proxy,
)
from tests.accounts.cast import HOUR, KEYS, NOON, NOW, OTHER_KEYS, SIGN_IN, meanwhile, stored, stored_cast

pytestmark = pytest.mark.django_db
BY_DEFAULT = Options()
PROXY = "http://ada:secret@proxy.example:3128"
NEWER = replace(SIGN_IN, access_token="newer-access")
QUOTA = Quota(
    {"codex/primary": Window(NOW, 42.0, 300, NOW + HOUR)},
    plan=Plan(NOW, "plus"),
    model_limits={"gpt-6": ModelLimit(NOW, NOW + HOUR)},
)


def events() -> list[str]:
    return [event.what for event in AccountEvent.objects.order_by("id")]


def load(*known: AccountSnapshot) -> tuple[AccountSnapshot, ...]:
    loaded = load_snapshots(KEYS, 8, known)
    assert loaded is not None
    return loaded


class TestLoadSnapshots:
    def test_the_cast_is_loaded_with_credentials_and_states(self):
        ada, bo, cy = stored_cast()
        loaded = load()
        assert [account.name for account in loaded] == ["ada", "bo", "cy"]
        assert loaded[0] == AccountSnapshot(
            id=ada.id,
            name="ada",
            kind=Kind.CODEX,
            base_url="https://chatgpt.com/backend-api/codex",
            transport=Transport.AUTO,
            priority=100,
            state=State.ACTIVE,
            state_reason="",
            state_until=None,
            streams=8,
            credentials=SIGN_IN,
            account_id="chatgpt-ada",
            revision=1,
        )
        assert (loaded[1].id, loaded[1].state, loaded[1].state_until) == (bo.id, State.LIMITED, NOW + 2 * HOUR)
        assert (loaded[2].id, loaded[2].state, loaded[2].state_reason) == (cy.id, State.PAUSED, "Holiday.")

    def test_an_account_may_have_a_number_of_streams_of_its_own(self):
        stored("ada", max_streams=3)
        assert load()[0].streams == 3

    def test_an_empty_base_url_means_the_default_of_the_kind(self):
        stored("ada", base_url="")
        assert load()[0].base_url == "https://chatgpt.com/backend-api/codex"

    def test_nothing_new_is_none_and_one_query_whatever_the_size_of_the_pool(self):
        for number in range(200):
            stored(f"account-{number}", credentials="")
        known = load()
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert load_snapshots(KEYS, 8, known) is None
        assert len(queries) == 1
        assert "credentials" not in queries[0]["sql"]

    def test_only_what_has_changed_is_built_anew(self):
        stored_cast()
        known = load()
        Account.objects.filter(name="bo").update(state="disabled", state_until=None)
        loaded = load(*known)
        assert loaded[0] is known[0]
        assert loaded[1].state is State.DISABLED
        assert loaded[2] is known[2]

    def test_a_new_account_and_a_removed_one_are_seen(self):
        stored_cast()
        known = load()
        Account.objects.filter(name="bo").delete()
        assert [account.name for account in load(*known)] == ["ada", "cy"]
        stored("abe")
        assert [account.name for account in load(*known)] == ["abe", "ada", "cy"]

    def test_an_empty_pool_is_a_result_once_there_was_one(self):
        stored("ada")
        known = load()
        Account.objects.all().delete()
        assert load(*known) == ()
        assert load_snapshots(KEYS, 8, ()) is None

    def test_the_time_of_last_use_is_nothing_new(self):
        stored("ada")
        known = load()
        Account.objects.update(last_used_at=datetime.fromtimestamp(NOW, UTC))
        assert load_snapshots(KEYS, 8, known) is None

    def test_what_is_known_of_the_usage_comes_with_it(self):
        ada = stored("ada")
        save_quota(ada.id, QUOTA)
        assert load()[0].quota == QUOTA

    def test_a_usage_that_cannot_be_read_is_unknown_and_hides_no_account(self):
        stored("ada", quota={"windows": ["odd"]})
        with capture_logs() as logs:
            assert load()[0].quota == NOTHING_KNOWN
        assert logs[0]["event"] == "quota_not_read"


class TestUnreadableCredentials:
    @pytest.mark.parametrize("state", ["active", "limited"])
    def test_an_account_without_credentials_needs_a_login(self, state):
        stored("ada", credentials="", state=state)
        (ada,) = load()
        assert (ada.state, ada.credentials, ada.state_until) == (State.NEEDS_LOGIN, None, None)
        assert ada.state_reason == "No credentials are stored."

    def test_one_under_another_key_needs_a_login_and_hides_no_other(self):
        stored("ada")
        bo = stored("bo", credentials=seal(SIGN_IN, OTHER_KEYS))
        with capture_logs() as logs:
            loaded = load()
        assert [account.state for account in loaded] == [State.ACTIVE, State.NEEDS_LOGIN]
        assert "restore the token_keys" in loaded[1].state_reason
        assert logs == [
            {"event": "credentials_not_opened", "account": bo.id, "error": "WrongTokenKey", "log_level": "warning"}
        ]

    def test_credentials_of_the_other_kind_are_not_used(self):
        stored("ada", credentials=seal(OpenAICredentials("sk-1"), KEYS))
        (ada,) = load()
        assert (ada.state, ada.credentials) == (State.NEEDS_LOGIN, None)

    @pytest.mark.parametrize("state", ["paused", "disabled"])
    def test_the_word_of_the_operator_stays(self, state):
        stored("ada", credentials="", state=state)
        assert load()[0].state == state

    def test_an_unusable_list_of_keys_is_an_error_of_the_whole_load(self):
        stored("ada")
        with pytest.raises(InvalidTokenKey):
            load_snapshots(["half-a-key"], 8)

    def test_stored_accounts_can_be_checked_at_the_start(self):
        stored_cast()
        check_token_key(Account.objects.only("name", "credentials"), KEYS)


class TestChangeState:
    def test_a_change_that_applies_is_written_whole(self):
        ada = stored("ada")
        assert change_state(StateChange(ada.id, State.ACTIVE, State.LIMITED, "usage limit", NOW + HOUR))
        ada.refresh_from_db()
        assert (ada.state, ada.state_reason) == ("limited", "usage limit")
        assert ada.state_until == datetime.fromtimestamp(NOW, UTC) + timedelta(hours=1)
        assert ada.revision == 2

    def test_leaving_a_limit_leaves_no_end_behind(self):
        bo = stored("bo", state="limited", state_until=datetime.fromtimestamp(NOW, UTC))
        assert change_state(StateChange(bo.id, State.LIMITED, State.ACTIVE, ""))
        bo.refresh_from_db()
        assert bo.state_until is None

    def test_an_account_in_another_state_is_left_alone(self):
        cy = stored("cy", state="paused", state_reason="Holiday.")
        assert not change_state(StateChange(cy.id, State.ACTIVE, State.LIMITED, "usage limit", NOW + HOUR))
        cy.refresh_from_db()
        assert (cy.state, cy.state_reason, cy.revision) == ("paused", "Holiday.", 1)

    def test_an_account_of_another_revision_is_left_alone(self):
        ada = stored("ada")
        change = StateChange(ada.id, State.ACTIVE, State.NEEDS_LOGIN, "401", revision=1)
        ada.save()
        assert not change_state(change)
        assert change_state(replace(change, revision=2))

    def test_an_account_that_is_gone_is_not_written(self):
        assert not change_state(StateChange(9, State.ACTIVE, State.PAUSED, ""))

    def test_each_change_writes_one_event_with_its_reason_and_its_author(self):
        ada, turn = stored("ada"), uuid4()
        assert change_state(StateChange(ada.id, State.ACTIVE, State.LIMITED, "usage limit", NOW + HOUR, by=turn))
        event = AccountEvent.objects.get()
        assert (event.account, event.account_name, event.what, event.why) == (ada, "ada", "limited", "usage limit")
        assert (event.by, event.turn) == ("", turn)
        change_state(StateChange(ada.id, State.LIMITED, State.ACTIVE, "", by="upkeep"))
        assert events() == ["limited", "recovered"]

    def test_a_change_that_does_not_apply_writes_none(self):
        cy = stored("cy", state="paused")
        change_state(StateChange(cy.id, State.ACTIVE, State.LIMITED, "usage limit", NOW + HOUR))
        assert events() == []

    def test_an_event_that_cannot_be_written_takes_the_change_with_it(self):
        ada = stored("ada")
        with pytest.raises(IntegrityError):
            change_state(StateChange(ada.id, State.ACTIVE, State.PAUSED, "", by=""))
        ada.refresh_from_db()
        assert ada.state == "active"

    def test_a_change_that_no_account_may_make_is_a_defect(self):
        cy = stored("cy", state="paused")
        with pytest.raises(IllegalTransition):
            change_state(StateChange(cy.id, State.PAUSED, State.LIMITED, ""))

    def test_it_can_hang_on_one_more_condition(self):
        ada = stored("ada")
        change = StateChange(ada.id, State.ACTIVE, State.PAUSED, "")
        assert not change_state(change, only=Q(priority=7))
        assert change_state(change, only=Q(priority=100))

    def test_a_long_reason_is_cut(self):
        ada = stored("ada")
        assert change_state(StateChange(ada.id, State.ACTIVE, State.PAUSED, "x" * 500))
        ada.refresh_from_db()
        assert ada.state_reason == "x" * 200


class TestMarkUsed:
    def test_the_last_use_is_noted_and_makes_nobody_load_the_account_again(self):
        ada = stored("ada")
        mark_used({ada.id: NOW, ada.id + 1: NOW})
        ada.refresh_from_db()
        assert (ada.last_used_at, ada.revision) == (NOON, 1)


class TestNoteEvent:
    def test_what_happened_is_noted_with_who_did_it(self):
        ada = stored("ada")
        assert note_event(ada.id, What.CIRCUIT_OPENED, "x" * 500, "traffic")
        event = AccountEvent.objects.get()
        assert (event.what, event.why, event.by, event.turn) == ("circuit_opened", "x" * 200, "traffic", None)

    def test_of_an_account_that_is_gone_nothing_is_noted(self):
        assert not note_event(9, What.CIRCUIT_OPENED, "", "traffic")
        assert events() == []


class TestSaveQuota:
    def test_new_evidence_is_merged_into_what_is_stored(self):
        ada = stored("ada")
        assert save_quota(ada.id, QUOTA)
        newer = Quota({"codex/primary": Window(NOW + 1, 50.0, 300, NOW + HOUR)}, model_limits=QUOTA.model_limits)
        assert save_quota(ada.id, newer)
        assert load()[0].quota == merge(QUOTA, newer)
        assert load()[0].revision == 3

    def test_old_evidence_changes_nothing_and_makes_nobody_load_the_account_again(self):
        ada = stored("ada")
        save_quota(ada.id, QUOTA)
        assert not save_quota(ada.id, QUOTA)
        assert not save_quota(ada.id, NOTHING_KNOWN)
        assert load()[0].revision == 2

    def test_what_another_one_saves_in_the_same_moment_is_kept(self):
        ada = stored("ada")
        week = Quota({"codex/secondary": Window(NOW, 80.0, 10_080, NOW + HOUR)})
        with meanwhile("UPDATE", lambda: save_quota(ada.id, week)):
            assert save_quota(ada.id, QUOTA)
        assert load()[0].quota == merge(QUOTA, week)

    def test_an_account_that_changes_all_the_time_is_left_for_the_next_time(self):
        ada = stored("ada")
        with meanwhile("UPDATE", lambda: Account.objects.update(priority=7), times=5):
            assert not save_quota(ada.id, QUOTA)

    def test_of_an_account_that_is_gone_nothing_is_saved(self):
        assert not save_quota(9, QUOTA)


class TestAddAccount:
    def test_a_sign_in_is_stored_sealed_with_its_labels(self):
        add_account("ada", Imported(SIGN_IN, "ada@example.com", "plus"), BY_DEFAULT, KEYS)
        ada = Account.objects.get(name="ada")
        assert (ada.kind, ada.state, ada.priority, ada.transport) == ("codex", "active", 100, "auto")
        assert ada.base_url == "https://chatgpt.com/backend-api/codex"
        assert (ada.account_id, ada.email, ada.plan_type) == ("chatgpt-ada", "ada@example.com", "plus")
        assert unseal(ada.credentials, KEYS) == SIGN_IN

        assert events() == ["added"]

    def test_a_sign_in_that_is_in_the_pool_already_is_refused(self):
        add_account("ada", Imported(SIGN_IN, "ada@example.com"), BY_DEFAULT, KEYS)
        with pytest.raises(RefusedAccount, match="in the pool as ada already"):
            add_account("bo", Imported(NEWER, "ada@example.com"), BY_DEFAULT, KEYS)

    def test_another_member_of_the_same_workspace_is_another_sign_in(self):
        add_account("ada", Imported(SIGN_IN, "ada@example.com"), BY_DEFAULT, KEYS)
        add_account("bo", Imported(replace(SIGN_IN, refresh_token="bo"), "bo@example.com"), BY_DEFAULT, KEYS)
        add_account("cy", Imported(replace(SIGN_IN, refresh_token="cy")), BY_DEFAULT, KEYS)
        assert Account.objects.count() == 3

    def test_options_are_stored_and_the_base_url_cleaned(self):
        options = Options("https://Example.com/v1/", Transport.HTTP, 5)
        add_account("ada", Imported(OpenAICredentials("sk-1")), options, KEYS)
        ada = Account.objects.get(name="ada")
        assert (ada.kind, ada.base_url, ada.transport, ada.priority) == ("openai", "https://example.com/v1", "http", 5)

    def test_a_name_in_use_is_refused_and_nothing_changes(self):
        stored("ada")
        with pytest.raises(NameTaken, match="named ada already"):
            add_account("ada", Imported(NEWER), BY_DEFAULT, KEYS)
        assert unseal(Account.objects.get().credentials, KEYS) == SIGN_IN

    def test_what_the_model_refuses_is_one_sentence_and_nothing_is_stored(self):
        with pytest.raises(RefusedAccount, match="plain http"):
            add_account("ada", Imported(SIGN_IN), Options(base_url="http://example.com"), KEYS)
        with pytest.raises(ObjectDoesNotExist):
            Account.objects.get()


class TestReplaceCredentials:
    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("active", "active"),
            ("needs_login", "active"),
            ("limited", "active"),
            ("paused", "paused"),
            ("disabled", "disabled"),
        ],
    )
    def test_what_traffic_found_out_is_forgotten_and_what_the_operator_decided_stays(self, before, after):
        until = datetime.fromtimestamp(NOW, UTC) if before == "limited" else None
        stored("ada", state=before, state_until=until, state_reason="a reason", priority=7)
        replace_credentials("ada", Imported(NEWER, "new@example.com", "pro"), BY_DEFAULT, KEYS)
        ada = Account.objects.get()
        assert (ada.state, ada.state_until) == (after, None)
        assert unseal(ada.credentials, KEYS) == NEWER
        assert (ada.email, ada.plan_type, ada.priority) == ("new@example.com", "pro", 7)
        assert ada.revision == 2

        assert [(event.what, event.by) for event in AccountEvent.objects.all()] == [("signed_in", "command line")]

    def test_what_held_back_the_old_tokens_does_not_hold_back_the_new_ones(self):
        ada = stored("ada")
        TokenLease.objects.create(account=ada, failures=3, next_try_at=NOON, last_error="no answer")
        replace_credentials("ada", Imported(NEWER), BY_DEFAULT, KEYS)
        lease = TokenLease.objects.get()
        assert (lease.failures, lease.next_try_at, lease.last_error) == (0, None, "")

    def test_what_the_operator_decides_in_the_same_moment_stays(self):
        stored("ada", state="needs_login")
        with meanwhile("UPDATE", lambda: Account.objects.update(state="disabled")):
            replace_credentials("ada", Imported(NEWER), BY_DEFAULT, KEYS)
        ada = Account.objects.get()
        assert (ada.state, unseal(ada.credentials, KEYS)) == ("disabled", NEWER)

    def test_an_account_that_changes_all_the_time_is_not_replaced(self):
        stored("ada")
        with (
            meanwhile("UPDATE", lambda: Account.objects.update(priority=7), times=5),
            pytest.raises(RefusedAccount, match="try again"),
        ):
            replace_credentials("ada", Imported(NEWER), BY_DEFAULT, KEYS)

    def test_options_that_are_given_replace_the_stored_ones(self):
        stored("ada")
        replace_credentials("ada", Imported(NEWER), Options("https://example.com/x/", priority=1), KEYS)
        ada = Account.objects.get()
        assert (ada.base_url, ada.transport, ada.priority) == ("https://example.com/x", "auto", 1)

    def test_a_column_nobody_asked_to_change_is_not_written(self):
        ada = stored("ada")
        with CaptureQueriesContext(connection) as queries:
            replace_credentials("ada", Imported(NEWER), BY_DEFAULT, KEYS)
        written = next(query["sql"] for query in queries if query["sql"].startswith("UPDATE"))
        assert '"state"' not in written.split("WHERE")[0]
        assert ada.name == "ada"

    def test_an_unknown_name_is_refused(self):
        with pytest.raises(RefusedAccount, match="no account named ada"):
            replace_credentials("ada", Imported(NEWER), BY_DEFAULT, KEYS)

    def test_another_chatgpt_account_never_comes_under_an_old_name(self):
        stored("ada")
        stranger = CodexCredentials("access", "refresh", account_id="chatgpt-bo")
        with pytest.raises(RefusedAccount, match="another ChatGPT account"):
            replace_credentials("ada", Imported(stranger), BY_DEFAULT, KEYS)

    def test_an_account_whose_id_was_unknown_takes_the_one_it_gets(self):
        stored("ada", account_id="")
        replace_credentials("ada", Imported(NEWER), BY_DEFAULT, KEYS)
        assert Account.objects.get().account_id == "chatgpt-ada"

    def test_the_kind_never_changes(self):
        stored("ada")
        with pytest.raises(RefusedAccount, match="of kind codex"):
            replace_credentials("ada", Imported(OpenAICredentials("sk-1")), BY_DEFAULT, KEYS)


class TestRequireFreeName:
    @pytest.mark.parametrize("name", ["", "a b", "-ada"])
    def test_a_name_that_no_account_could_have_is_refused(self, name):
        with pytest.raises(RefusedAccount):
            require_free_name(name)

    def test_a_free_name_is_free(self):
        require_free_name("ada")


class TestProxy:
    def test_it_is_stored_sealed_and_loaded_with_the_account(self):
        stored("ada")
        assert set_proxy("ada", PROXY, KEYS, by="admin")
        (snapshot,) = load_snapshots(KEYS, 8)
        assert snapshot.proxy == PROXY
        assert "secret" not in Account.objects.get().proxy + repr(snapshot)
        event = AccountEvent.objects.get()
        assert (event.what, event.why, event.by) == ("proxy_changed", "http://…@proxy.example:3128", "admin")

    def test_it_can_be_taken_away(self):
        stored("ada", proxy=seal_text(PROXY, KEYS))
        assert set_proxy("ada", "", KEYS)
        assert load_snapshots(KEYS, 8)[0].proxy is None
        assert AccountEvent.objects.get().why == "none any more"

    def test_the_same_one_again_is_no_change(self):
        stored("ada", proxy=seal_text(PROXY, KEYS))
        assert not set_proxy("ada", PROXY, KEYS)
        assert not AccountEvent.objects.exists()

    def test_an_account_whose_proxy_cannot_be_opened_is_not_reached_without_it(self):
        stored("ada", proxy=seal_text(PROXY, OTHER_KEYS))
        (snapshot,) = load_snapshots(KEYS, 8)
        assert (snapshot.state, snapshot.credentials) == (State.NEEDS_LOGIN, None)
        assert set_proxy("ada", PROXY, KEYS)
        assert load_snapshots(KEYS, 8)[0].state is State.ACTIVE

    def test_an_unknown_account_is_refused(self):
        with pytest.raises(RefusedAccount, match="no account named"):
            set_proxy("ada", PROXY, KEYS)
