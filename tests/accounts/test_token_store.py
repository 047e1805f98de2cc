from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError
from django.utils import timezone

from accounts import token_store
from accounts.credentials import CodexCredentials, OpenAICredentials, seal, unseal
from accounts.models import Account, AccountEvent, TokenLease
from accounts.token_store import AHEAD, JUST_REFRESHED, LONGEST_PAUSE, UNTOLD_AGE, Busy, Fresh, Held, Refused, Wanted
from tests.accounts.cast import HOUR, KEYS, NOW, OTHER_KEYS, meanwhile, stored
from tests.accounts.issuing import access_token

pytestmark = pytest.mark.django_db

LATER = NOW + 10 * HOUR
OLD = CodexCredentials(access_token(0), "refresh-0", "id", "chatgpt-ada", datetime.fromtimestamp(NOW - HOUR, UTC))
NEW = replace(OLD, access_token=access_token(1), refresh_token="refresh-1")


def ada(credentials=OLD, **values):
    return stored("ada", credentials=seal(credentials, KEYS), **values)


def claim(account, now=NOW, refused=OLD.access_token, owner="one"):
    return token_store.claim(Wanted(account.id, now, refused), owner, KEYS)


def held(account, **arguments) -> Held:
    claimed = claim(account, **arguments)
    assert isinstance(claimed, Held)
    return claimed


def credentials():
    return unseal(Account.objects.get().credentials, KEYS)


def lease():
    return TokenLease.objects.get()


def seal_anew():
    """What a rotation of keys does, more or less: other texts, the same tokens."""
    for account in Account.objects.all():
        Account.objects.filter(id=account.id).update(credentials=seal(unseal(account.credentials, KEYS), KEYS))


def past():
    return timezone.now() - timedelta(seconds=1)


class TestWanted:
    def test_a_token_is_refreshed_five_minutes_before_it_expires(self):
        wanted = Wanted(1, LATER - AHEAD)
        assert wanted.is_due(OLD)
        assert not replace(wanted, now=LATER - AHEAD - 1).is_due(OLD)

    def test_one_that_does_not_say_when_is_refreshed_by_its_age(self):
        opaque = replace(OLD, access_token="opaque")
        made = NOW - HOUR
        assert not Wanted(1, made + UNTOLD_AGE - 1).is_due(opaque)
        assert Wanted(1, made + UNTOLD_AGE).is_due(opaque)
        assert Wanted(1, NOW).is_due(replace(opaque, last_refresh=None))

    def test_a_refused_token_is_refreshed_whatever_it_says_and_no_other_is(self):
        assert Wanted(1, NOW, OLD.access_token).is_due(OLD)
        assert not Wanted(1, LATER, OLD.access_token).is_due(NEW)

    def test_a_new_token_that_is_refused_is_hopeless_and_an_old_one_is_not(self):
        made = OLD.last_refresh.timestamp()
        assert Wanted(1, made + JUST_REFRESHED - 1, OLD.access_token).is_hopeless(OLD)
        assert not Wanted(1, made + JUST_REFRESHED, OLD.access_token).is_hopeless(OLD)
        assert not Wanted(1, made - 1, OLD.access_token).is_hopeless(OLD)
        assert not Wanted(1, made).is_hopeless(OLD)

    def test_no_token_is_printed(self):
        assert OLD.access_token not in repr(Wanted(1, NOW, OLD.access_token))


class TestClaim:
    def test_the_first_holds_the_lease_and_the_second_finds_it_busy(self):
        account = ada()
        claimed = claim(account)
        assert claimed == Held(account.id, "one", OLD, abandoned=False)
        assert claim(account, owner="two") == Busy()

    def test_a_lease_whose_time_is_over_is_taken_and_known_to_be_abandoned(self):
        account = ada()
        claim(account)
        TokenLease.objects.update(until=past())
        assert claim(account, owner="two") == Held(account.id, "two", OLD, abandoned=True)

    def test_it_lasts_by_the_clock_of_the_database(self):
        claim(ada(), now=NOW)
        assert timedelta(seconds=80) < lease().until - timezone.now() <= timedelta(seconds=90)

    def test_a_newer_token_in_the_database_is_used_and_nothing_is_claimed(self):
        account = ada(NEW)
        assert claim(account) == Fresh(NEW)
        assert not TokenLease.objects.exists()

    def test_a_token_that_another_one_stores_while_the_lease_is_claimed_is_seen(self):
        account = ada()
        with meanwhile('UPDATE "accounts_tokenlease"', lambda: Account.objects.update(credentials=seal(NEW, KEYS))):
            assert claim(account) == Fresh(NEW)
        assert lease().owner == ""

    @pytest.mark.parametrize("state", ["paused", "needs_login", "disabled"])
    def test_an_account_that_is_out_is_left_alone(self, state):
        claimed = claim(ada(state=state))
        assert claimed == Refused(f"The account is {state.replace('_', ' ')}.")

    def test_an_account_without_a_sign_in_has_nothing_to_refresh(self):
        why = "The account has no sign-in that could be refreshed."
        assert claim(stored("bo", credentials="")) == Refused(why)
        assert claim(stored("cy", credentials=seal(OLD, OTHER_KEYS))) == Refused(why)
        key = seal(OpenAICredentials("sk-1"), KEYS)
        assert claim(stored("dee", kind="openai", credentials=key)) == Refused(why)

    def test_an_account_that_is_gone_is_told(self):
        account = ada()
        Account.objects.all().delete()
        account.id = 99
        assert claim(account) == Refused("The account is gone.")

    def test_after_a_failure_nobody_tries_before_the_time(self):
        account = ada()
        retry_at = token_store.back_off(held(account), "no answer", NOW)
        claimed = claim(account, now=retry_at - 1, owner="two")
        assert claimed == Refused("The last try failed: no answer", retry_at)
        assert isinstance(claim(account, now=retry_at, owner="two"), Held)

    def test_a_token_that_was_made_just_now_and_is_refused_means_a_login(self):
        account = ada(replace(OLD, last_refresh=datetime.fromtimestamp(NOW - 60, UTC)))
        assert claim(account) == Refused("The upstream refuses a token that was made just now.")
        account.refresh_from_db()
        assert account.state == "needs_login"
        assert lease().owner == ""

    def test_a_lease_has_both_an_owner_and_an_end_or_neither(self):
        with pytest.raises(IntegrityError):
            TokenLease.objects.create(account=ada(), owner="one")


class TestStore:
    def test_new_tokens_replace_those_that_were_sent_and_the_lease_is_given_back(self):
        account = ada()
        assert token_store.store(held(account), NEW, KEYS) == NEW
        assert credentials() == NEW
        assert (lease().owner, lease().until, lease().failures) == ("", None, 0)
        assert timezone.now() - lease().refreshed_at < timedelta(seconds=5)
        account.refresh_from_db()
        assert account.revision == 2

    def test_credentials_that_the_operator_gave_meanwhile_are_kept(self):
        account = ada()
        claimed = held(account)
        theirs = replace(OLD, refresh_token="from-the-operator")
        Account.objects.update(credentials=seal(theirs, KEYS))
        assert token_store.store(claimed, NEW, KEYS) == theirs
        assert credentials() == theirs
        assert lease().owner == ""

    def test_tokens_that_were_only_sealed_anew_are_replaced(self):
        account = ada()
        claimed = held(account)
        Account.objects.update(credentials=seal(OLD, KEYS), priority=7)
        assert token_store.store(claimed, NEW, KEYS) == NEW
        assert credentials() == NEW

    def test_so_are_tokens_that_are_sealed_anew_in_the_last_moment(self):
        claimed = held(ada())
        with meanwhile('UPDATE "accounts_account"', seal_anew):
            assert token_store.store(claimed, NEW, KEYS) == NEW
        assert credentials() == NEW

    def test_credentials_that_change_all_the_time_are_somebody_s_defect(self):
        claimed = held(ada())
        for end in (lambda: token_store.store(claimed, NEW, KEYS), lambda: token_store.give_up(claimed, "dead", KEYS)):
            changing = meanwhile('UPDATE "accounts_account"', seal_anew, times=5)
            with changing, pytest.raises(RuntimeError, match="stop what changes them"):
                end()

    def test_an_account_that_was_given_up_meanwhile_is_active_again(self):
        account = ada()
        first = held(account)
        TokenLease.objects.update(until=past())
        second = held(account, owner="two")
        assert token_store.give_up(second, "reused", KEYS) is None
        assert token_store.store(first, NEW, KEYS) == NEW
        account.refresh_from_db()
        assert (account.state, account.state_reason) == ("active", "")
        assert [(event.what, event.by) for event in AccountEvent.objects.all()] == [
            ("signed_in", "token refresh"),
            ("needs_login", "token refresh"),
        ]

    def test_a_lease_that_is_another_s_by_now_stays_theirs(self):
        account = ada()
        first = held(account)
        TokenLease.objects.update(until=past())
        held(account, owner="two")
        token_store.store(first, NEW, KEYS)
        assert lease().owner == "two"

    def test_for_an_account_that_is_gone_the_tokens_are_still_good(self):
        account = ada()
        claimed = held(account)
        account.delete()
        assert token_store.store(claimed, NEW, KEYS) == NEW


class TestGiveUp:
    def test_the_account_needs_a_login_and_its_event_says_why(self):
        account = ada()
        assert token_store.give_up(held(account), "reused", KEYS) is None
        account.refresh_from_db()
        assert (account.state, account.state_reason) == ("needs_login", "reused")
        assert (lease().owner, lease().last_error) == ("", "reused")
        assert AccountEvent.objects.get().what == "needs_login"

    def test_an_account_with_newer_tokens_is_healthy(self):
        account = ada()
        claimed = held(account)
        Account.objects.update(credentials=seal(NEW, KEYS))
        assert token_store.give_up(claimed, "reused", KEYS) == NEW
        account.refresh_from_db()
        assert account.state == "active"
        assert lease().owner == ""

    def test_being_sealed_anew_in_the_last_moment_does_not_save_it(self):
        account = ada()
        claimed = held(account)
        with meanwhile('UPDATE "accounts_account"', seal_anew):
            assert token_store.give_up(claimed, "reused", KEYS) is None
        account.refresh_from_db()
        assert account.state == "needs_login"

    def test_new_tokens_in_the_last_moment_do(self):
        account = ada()
        claimed = held(account)
        with meanwhile('UPDATE "accounts_account"', lambda: Account.objects.update(credentials=seal(NEW, KEYS))):
            assert token_store.give_up(claimed, "reused", KEYS) == NEW
        account.refresh_from_db()
        assert account.state == "active"

    def test_the_word_of_the_operator_stays(self):
        account = ada()
        claimed = held(account)
        Account.objects.update(state="paused")
        assert token_store.give_up(claimed, "reused", KEYS) is None
        account.refresh_from_db()
        assert account.state == "paused"
        assert lease().last_error == "reused"

    def test_an_account_that_is_gone_is_nobody_s_business(self):
        account = ada()
        claimed = held(account)
        account.delete()
        assert token_store.give_up(claimed, "reused", KEYS) is None


class TestBackOff:
    def test_pauses_grow_up_to_the_longest_and_a_success_ends_them(self):
        account = ada()
        pauses, now = [], NOW
        for _ in range(10):
            retry_at = token_store.back_off(held(account, now=now), "no answer", now)
            pauses.append(retry_at - now)
            now = retry_at
        assert pauses == [10, 20, 40, 80, 160, 320, 640, 1280, LONGEST_PAUSE, LONGEST_PAUSE]
        token_store.store(held(account, now=now), NEW, KEYS)
        assert (lease().failures, lease().next_try_at, lease().last_error) == (0, None, "")

    def test_an_account_that_is_gone_is_nobody_s_business(self):
        account = ada()
        claimed = held(account)
        account.delete()
        assert token_store.back_off(claimed, "no answer", NOW) == NOW + 10


class TestDue:
    def test_sign_ins_that_are_about_to_expire_are_found_and_no_others(self):
        soon = seal(OLD, KEYS)
        stored("ada", credentials=soon)
        stored("bo", credentials=soon, state="limited")
        stored("cy", credentials=soon, state="paused")
        stored("dee", kind="openai", credentials=seal(OpenAICredentials("sk-1"), KEYS))
        stored("eve", credentials=seal(replace(OLD, access_token=access_token(1, LATER + HOUR)), KEYS))
        stored("fay", credentials="")
        assert [account.name for account in token_store.due(LATER - AHEAD, KEYS)] == ["ada", "bo"]

    def test_one_that_waits_for_its_next_try_is_left_out_until_then(self):
        account = ada()
        retry_at = token_store.back_off(held(account), "no answer", LATER)
        assert token_store.due(retry_at - 1, KEYS) == []
        assert [account.name for account in token_store.due(retry_at, KEYS)] == ["ada"]
