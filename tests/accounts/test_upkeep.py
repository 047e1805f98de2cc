import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from asgiref.sync import async_to_sync
from structlog.testing import capture_logs

from accounts import upkeep
from accounts.credentials import CodexCredentials, OpenAICredentials, seal, unseal
from accounts.issuer import Answer, Issuer
from accounts.models import Account, AccountEvent
from accounts.registry import StateChange
from accounts.states import State
from accounts.store import change_state, load_snapshots
from accounts.tokens import Refresher, Waiting, run_in_caller
from tests.accounts.cast import HOUR, KEYS, NOW, meanwhile, stored, stored_cast
from tests.accounts.issuing import MemoryIssuer, access_token, cut_off

pytestmark = pytest.mark.django_db

ACCESS = access_token(0)
SIGN_IN = CodexCredentials(ACCESS, "refresh-0", "", "chatgpt-ada", datetime.fromtimestamp(NOW - HOUR, UTC))


def at(unix):
    return datetime.fromtimestamp(unix, UTC)


def ada(name="ada", credentials=SIGN_IN, **values):
    return stored(name, credentials=seal(credentials, KEYS), **values)


def state(name="ada"):
    account = Account.objects.get(name=name)
    return account.state, account.state_until and account.state_until.timestamp()


def events():
    return [(event.account_name, event.what, event.by) for event in AccountEvent.objects.order_by("id")]


class TestRecoverLimited:
    def test_limits_that_are_over_are_written_down_as_that(self):
        stored_cast()
        assert upkeep.recover_limited(NOW + 2 * HOUR) == "The limit is over of 1 account (bo)."
        assert state("bo") == ("active", None)
        assert events() == [("bo", "recovered", "upkeep")]

    def test_others_are_not(self):
        stored_cast()
        stored("dee", state="limited")
        assert upkeep.recover_limited(NOW + 2 * HOUR - 1) == "No limit has ended."
        assert state("bo")[0] == state("dee")[0] == "limited"

    def test_a_limit_that_is_new_in_the_same_moment_stays(self):
        *_, bo, _ = stored_cast()
        longer = StateChange(bo.id, State.LIMITED, State.LIMITED, "usage limit", NOW + 9 * HOUR)
        with meanwhile("UPDATE", lambda: change_state(longer)):
            upkeep.recover_limited(NOW + 2 * HOUR)
        assert state("bo") == ("limited", NOW + 9 * HOUR)


class Upstream:
    """An issuer, and a usage endpoint that gives the answers that it has for the access token it is asked with."""

    def __init__(self, **answers):
        self.issuer = MemoryIssuer()
        self.answers = answers
        self.asked = []
        self.meanwhile = lambda: None

    async def fetch(self, url, headers):
        self.asked.append((url, dict(headers)))
        await run_in_caller(self.meanwhile)
        answer = self.answers[headers["authorization"].removeprefix("Bearer ")]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def refresher(self):
        return Refresher(self.issuer.post, run_in_caller, Issuer(), KEYS, Waiting(wall=lambda: NOW))

    def refresh(self, now=NOW):
        async def run():
            return await upkeep.refresh_tokens(self.refresher(), run_in_caller, KEYS, now)

        return async_to_sync(run)()

    def poll(self, now=NOW, budget=5.0):
        async def run():
            return await upkeep.poll_usage(self.fetch, self.refresher(), run_in_caller, KEYS, now, budget=budget)

        return async_to_sync(run)()


EXPIRING = replace(SIGN_IN, access_token=access_token(0, NOW + 60))


class TestRefreshTokens:
    def test_nothing_to_do_is_told_and_nobody_asked(self):
        ada()
        upstream = Upstream()
        assert upstream.refresh() == "No token is about to expire."
        assert upstream.issuer.questions == []

    def test_tokens_that_are_about_to_expire_are_refreshed(self):
        ada(credentials=EXPIRING)
        stored("bo", credentials=seal(OpenAICredentials("sk-1"), KEYS), kind="openai")
        assert Upstream().refresh() == "Tokens of 1 account were about to expire; refreshed: 1 account (ada)."
        assert unseal(Account.objects.get(name="ada").credentials, KEYS).refresh_token == "refresh-1"

    def test_each_outcome_is_told_with_its_accounts(self):
        for name in ("ada", "bo", "cy"):
            ada(name, replace(EXPIRING, account_id=f"chatgpt-{name}"))
        upstream = Upstream()
        upstream.issuer.answers = [cut_off(), Answer(401), Answer(200, {"access_token": access_token(1)})]
        with capture_logs():
            told = upstream.refresh()
        assert told == (
            "Tokens of 3 accounts were about to expire; refreshed: 1 account (cy); "
            "to be tried later: 1 account (ada); in need of a login: 1 account (bo)."
        )


def usage(allowed=True, plan="plus", **window):
    primary = {"used_percent": 42, "limit_window_seconds": 18_000, "reset_at": NOW + HOUR} | window
    return Answer(200, {"plan_type": plan, "rate_limit": {"allowed": allowed, "primary_window": primary}})


class TestPollUsage:
    def test_sign_ins_are_asked_with_their_own_headers_and_nobody_else(self):
        ada()
        stored("bo", credentials=seal(OpenAICredentials("sk-1"), KEYS), kind="openai")
        ada("cy", state="paused")
        upstream = Upstream(**{ACCESS: usage()})
        assert upstream.poll() == "Asked 1 account for the usage: 1 told it."
        headers = {"authorization": f"Bearer {ACCESS}", "chatgpt-account-id": "chatgpt-ada"}
        assert upstream.asked == [("https://chatgpt.com/backend-api/wham/usage", headers)]

    def test_without_sign_ins_there_is_nobody_to_ask(self):
        assert Upstream().poll() == "There is no sign-in whose usage could be asked for."

    def test_an_account_whose_id_is_unknown_is_asked_without_it(self):
        ada(credentials=replace(SIGN_IN, account_id=""))
        upstream = Upstream(**{ACCESS: usage()})
        upstream.poll()
        assert list(upstream.asked[0][1]) == ["authorization"]

    def test_what_it_tells_is_kept_and_reaches_the_registry(self):
        ada(plan_type="plus")
        Upstream(**{ACCESS: usage()}).poll()
        (account,) = load_snapshots(KEYS, 8)
        assert account.quota.used_percent(NOW) == 42
        assert events() == []

    def test_a_limit_becomes_the_account_s_state_once(self):
        ada(plan_type="plus")
        upstream = Upstream(**{ACCESS: usage(allowed=False, used_percent=100)})
        upstream.poll()
        # Upstreams count the reset from the moment they are asked, so that it moves by a few seconds.
        upstream.answers[ACCESS] = usage(allowed=False, used_percent=100, reset_at=NOW + HOUR + 3)
        upstream.poll(NOW + 10)
        assert state() == ("limited", NOW + HOUR)
        assert events() == [("ada", "limited", "upkeep")]

    def test_a_limit_that_is_over_before_its_time_ends(self):
        ada(state="limited", state_until=at(NOW + HOUR), plan_type="plus")
        Upstream(**{ACCESS: usage(allowed=True)}).poll()
        assert state() == ("active", None)
        assert events() == [("ada", "recovered", "upkeep")]

    def test_a_full_window_alone_limits_nobody(self):
        ada()
        Upstream(**{ACCESS: usage(used_percent=100)}).poll()
        assert state() == ("active", None)

    def test_an_answer_that_says_nothing_of_a_limit_leaves_it(self):
        ada(state="limited", state_until=at(NOW + HOUR))
        Upstream(**{ACCESS: Answer(200, {})}).poll()
        assert state() == ("limited", NOW + HOUR)

    def test_what_traffic_has_found_out_since_it_was_asked_counts(self):
        account = ada(state="limited", state_until=at(NOW + HOUR))
        upstream = Upstream(**{ACCESS: usage(allowed=True)})
        limit = StateChange(account.id, State.LIMITED, State.LIMITED, "usage limit", NOW + 9 * HOUR)
        upstream.meanwhile = lambda: change_state(limit)
        upstream.poll()
        assert state() == ("limited", NOW + 9 * HOUR)

    def test_another_plan_is_noted(self):
        ada(plan_type="plus")
        Upstream(**{ACCESS: usage(plan="free")}).poll()
        assert Account.objects.get().plan_type == "free"
        event = AccountEvent.objects.get()
        assert (event.what, event.why) == ("plan_changed", "from plus to free")

    def test_a_plan_that_was_unknown_is_noted_as_that(self):
        ada()
        Upstream(**{ACCESS: usage(plan="free")}).poll()
        assert AccountEvent.objects.get().why == "from unknown to free"

    def test_a_plan_that_another_process_has_noted_is_not_noted_twice(self):
        ada(plan_type="plus")
        upstream = Upstream(**{ACCESS: usage(plan="free")})
        upstream.meanwhile = lambda: Account.objects.update(plan_type="free")
        upstream.poll()
        assert events() == []

    def test_a_refused_token_is_refreshed_and_the_question_asked_again(self):
        ada()
        upstream = Upstream(**{ACCESS: Answer(401), access_token(1): usage()})
        assert upstream.poll() == "Asked 1 account for the usage: 1 told it."
        assert len(upstream.asked) == 2

    def test_accounts_that_do_not_tell_are_named_with_the_reason(self):
        for number, name in enumerate(("ada", "bo", "cy", "dee")):
            ada(name, replace(SIGN_IN, access_token=access_token(number), refresh_token="dead"))
        upstream = Upstream(
            **{
                access_token(0): usage(),
                access_token(1): Answer(503),
                access_token(2): cut_off(),
                access_token(3): Answer(401),
            }
        )
        with capture_logs():
            told = upstream.poll()
        assert told == (
            "Asked 4 accounts for the usage: 1 told it; 3 did not (bo: status 503, "
            "cy: auth.openai.com did not answer within 30 s, "
            "dee: The issuer refuses the refresh token (refresh_token_reused))."
        )

    def test_a_defect_with_one_account_does_not_keep_the_others_waiting(self):
        ada()
        ada("bo", replace(SIGN_IN, access_token="unknown"))
        with capture_logs() as logs:
            told = Upstream(**{ACCESS: usage()}).poll()
        assert told == "Asked 2 accounts for the usage: 1 told it; 1 did not (bo: not done)."
        assert [entry["event"] for entry in logs] == ["account_upkeep_failed"]

    def test_an_account_that_takes_too_long_is_left_for_the_next_time(self):
        ada()
        ada("bo", replace(SIGN_IN, access_token=access_token(1)))
        upstream = Upstream(**{ACCESS: usage()})
        fetch = upstream.fetch

        async def slow(url, headers):
            if headers["authorization"].endswith(access_token(1)):
                await asyncio.sleep(60)
            return await fetch(url, headers)

        upstream.fetch = slow
        assert upstream.poll(budget=0.1) == "Asked 2 accounts for the usage: 1 told it; 1 did not (bo: not done)."

    def test_many_accounts_are_asked_some_at_a_time(self):
        for number in range(20):
            ada(f"account-{number}", replace(SIGN_IN, access_token=access_token(number)))
        upstream = Upstream(**{access_token(number): usage() for number in range(20)})
        running = most = 0
        fetch = upstream.fetch

        async def counted(url, headers):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            return await fetch(url, headers)

        upstream.fetch = counted
        assert upstream.poll() == "Asked 20 accounts for the usage: 20 told it."
        assert 1 < most <= upkeep.AT_ONCE
