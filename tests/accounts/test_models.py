from datetime import timedelta
from io import StringIO

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import IntegrityError

from accounts.models import Account, AccountEvent, TokenLease
from accounts.states import State
from tests.accounts.cast import NOON, stored, stored_cast


def unsaved(**values):
    return Account(**({"name": "ada", "kind": "codex"} | values))


@pytest.mark.django_db
class TestValidation:
    @pytest.mark.parametrize(
        ("kind", "url"),
        [("codex", "https://chatgpt.com/backend-api/codex"), ("openai", "https://api.openai.com/v1")],
    )
    def test_an_account_without_a_base_url_gets_that_of_its_kind(self, kind, url):
        account = unsaved(kind=kind)
        account.full_clean()
        assert account.base_url == url

    def test_the_base_url_is_stored_in_its_clean_form(self):
        account = unsaved(base_url="https://Example.com/v1/")
        account.full_clean()
        assert account.base_url == "https://example.com/v1"

    def test_a_bad_base_url_is_an_error_of_that_field(self):
        with pytest.raises(ValidationError) as caught:
            unsaved(base_url="http://example.com").full_clean()
        assert "plain http" in caught.value.message_dict["base_url"][0]

    def test_an_unknown_kind_is_the_only_error_told(self):
        with pytest.raises(ValidationError) as caught:
            unsaved(kind="other").full_clean()
        assert "base_url" not in caught.value.message_dict

    @pytest.mark.parametrize("name", ["", "-ada", "a b", "ada\n", "äda", "a/b", "a" * 51])
    def test_a_name_is_short_and_plain(self, name):
        with pytest.raises(ValidationError) as caught:
            unsaved(name=name).full_clean()
        assert list(caught.value.message_dict) == ["name"]

    def test_names_are_unique(self):
        stored("ada")
        with pytest.raises(ValidationError, match="already exists"):
            unsaved().full_clean()

    @pytest.mark.parametrize(
        "values",
        [
            {"state": "asleep"},
            {"kind": "other"},
            {"transport": "pigeon"},
            {"max_streams": 0},
            {"state": "paused", "state_until": NOON},
        ],
    )
    def test_the_database_itself_refuses_an_illegal_state(self, values):
        with pytest.raises(IntegrityError):
            stored("ada", **values)


class TestStateQuestions:
    def test_a_limited_account_is_usable_again_from_its_end_on(self):
        bo = unsaved(state="limited", state_until=NOON)
        assert not bo.is_usable(NOON - timedelta(seconds=1))
        assert bo.is_usable(NOON)
        assert bo.state_at(NOON) is State.ACTIVE

    @pytest.mark.parametrize("state", ["limited", "paused", "needs_login", "disabled"])
    def test_an_account_out_without_an_end_is_not_usable(self, state):
        account = unsaved(state=state)
        assert not account.is_usable(NOON)
        assert account.state_at(NOON) == state

    def test_an_account_is_called_by_its_name(self):
        assert str(unsaved()) == "ada"


@pytest.mark.django_db
class TestRevision:
    def revision(self, account):
        return Account.objects.values_list("revision", flat=True).get(id=account.id)

    def test_every_way_to_write_raises_it(self):
        account = stored("ada")
        assert self.revision(account) == 1
        account.save()
        assert self.revision(account) == 2
        account.save(update_fields=["priority"])
        assert self.revision(account) == 3
        Account.objects.filter(name="ada").update(state="paused")
        assert self.revision(account) == 4
        Account.objects.bulk_update([account], ["priority"])
        assert self.revision(account) == 5

    def test_two_writers_with_the_same_old_row_raise_it_twice(self):
        stored("ada")
        first, second = Account.objects.get(), Account.objects.get()
        first.save()
        second.save()
        assert self.revision(first) == 3

    def test_the_time_of_the_change_is_written_too(self):
        account = stored("ada")
        Account.objects.filter(id=account.id).update(updated_at=NOON)
        Account.objects.filter(id=account.id).update(state="paused")
        account.refresh_from_db()
        assert account.updated_at > NOON
        Account.objects.filter(id=account.id).update(updated_at=NOON)
        account.save(update_fields=["priority"])
        account.refresh_from_db()
        assert account.updated_at > NOON

    def test_the_time_of_last_use_is_no_change(self):
        account = stored("ada")
        Account.objects.filter(id=account.id).update(last_used_at=NOON)
        account.last_used_at = NOON
        account.save(update_fields=["last_used_at"])
        assert self.revision(account) == 1


@pytest.mark.django_db
class TestTable:
    def test_accounts_come_by_priority_then_by_name(self):
        stored_cast()
        stored("dee", priority=1)
        assert [account.name for account in Account.objects.all()] == ["dee", "ada", "bo", "cy"]

    def test_the_migrations_match_the_models(self):
        call_command("makemigrations", "accounts", check=True, dry_run=True, stdout=StringIO())


@pytest.mark.django_db
class TestEvent:
    def test_it_outlives_its_account_under_its_name(self):
        account = stored("ada")
        AccountEvent.objects.create(account=account, account_name="ada", what="paused", by="admin")
        TokenLease.objects.create(account=account)
        account.delete()
        event = AccountEvent.objects.get()
        assert (event.account, str(event)) == (None, "ada paused")
        assert not TokenLease.objects.exists()

    def test_the_newest_comes_first(self):
        account = stored("ada")
        for minute, what in ((1, "paused"), (3, "disabled"), (2, "resumed")):
            AccountEvent.objects.create(account=account, what=what, by="admin", at=NOON + timedelta(minutes=minute))
        assert [event.what for event in account.events.all()] == ["disabled", "resumed", "paused"]

    @pytest.mark.parametrize("values", [{"what": "paused"}, {"what": "vanished", "by": "admin"}])
    def test_the_database_itself_refuses_one_without_author_or_of_an_unknown_kind(self, values):
        with pytest.raises(IntegrityError):
            AccountEvent.objects.create(account_name="ada", **values)

    def test_a_lease_says_whose_refreshing_it_is(self):
        account = stored("ada")
        assert str(TokenLease(account=account)) == f"refreshing of account {account.id}"
