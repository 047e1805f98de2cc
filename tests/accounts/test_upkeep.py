import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from asgiref.sync import async_to_sync
from structlog.testing import capture_logs

from accounts import upkeep
from accounts.asking import AT_ONCE, Asker
from accounts.credentials import CodexCredentials, OpenAICredentials, seal, seal_text, unseal
from accounts.issuer import Answer, Issuer
from accounts.models import Account, AccountEvent
from accounts.registry import StateChange
from accounts.states import State
from accounts.store import change_state, load_snapshots
from accounts.tokens import Refresher, Waiting, run_in_caller
from tests.accounts.cast import HOUR, KEYS, NOW, OTHER_KEYS, meanwhile, stored, stored_cast
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

    async def fetch(self, url, headers, proxy=None):
        self.asked.append((url, dict(headers)))
        await run_in_caller(self.meanwhile)
        answer = self.answers[headers["authorization"].removeprefix("Bearer ")]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def refresher(self):
        return Refresher(self.issuer.post, run_in_caller, Issuer(), KEYS, Waiting(wall=lambda: NOW))

    def asker(self):
        return Asker(self.fetch, self.refresher(), run_in_caller, KEYS)

    def refresh(self, now=NOW):
        async def run():
            return await upkeep.refresh_tokens(self.asker(), now)

        return async_to_sync(run)()

    def poll(self, now=NOW, budget=5.0):
        async def run():
            return await upkeep.poll_usage(self.asker(), now, budget=budget)

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

        async def slow(url, headers, proxy):
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

        async def counted(url, headers, proxy):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            return await fetch(url, headers)

        upstream.fetch = counted
        assert upstream.poll() == "Asked 20 accounts for the usage: 20 told it."
        assert 1 < most <= AT_ONCE


class TestPollModels:
    CATALOGUE = Answer(200, {"models": [{"slug": "gpt-5.5"}, {"slug": "gpt-6-sol"}, {"slug": "gpt-5.5"}, {}]})

    def poll(self, upstream, **options):
        async def run():
            return await upkeep.poll_models(upstream.asker(), **options)

        return async_to_sync(run)()

    def models(self, name="ada"):
        (found,) = [each for each in load_snapshots(KEYS, 8) if each.name == name]
        return found.models

    def test_each_account_has_the_models_of_its_own_catalogue(self):
        ada()
        stored("bo", credentials=seal(OpenAICredentials("sk-1"), KEYS), kind="openai", base_url="https://x.example/v1")
        upstream = Upstream(**{ACCESS: self.CATALOGUE, "sk-1": Answer(200, {"data": [{"id": "gpt-5.5"}]})})
        assert self.models() is None
        assert self.poll(upstream) == "Asked 2 accounts for the models: 2 told them."
        assert self.models() == {"gpt-5.5", "gpt-6-sol"}
        assert self.models("bo") == {"gpt-5.5"}
        assert [url for url, _ in upstream.asked] == [
            "https://chatgpt.com/backend-api/codex/models?client_version=0.171.0",
            "https://x.example/v1/models",
        ]

    def test_only_those_that_are_not_known_can_be_asked_for(self):
        ada(offered_models=["gpt-5.5"])
        assert self.poll(Upstream(), unknown_only=True) == "There is no account whose models could be asked for."

    def test_a_catalogue_that_says_the_same_makes_nobody_load_the_account_again(self):
        ada(offered_models=["gpt-5.5", "gpt-6-sol"])
        self.poll(Upstream(**{ACCESS: self.CATALOGUE}))
        assert Account.objects.get().revision == 1

    @pytest.mark.parametrize(
        ("answer", "why"),
        [
            (Answer(500), "status 500"),
            (Answer(200, {}), "a catalogue without models"),
            (Answer(200, {"models": "all"}), "a catalogue without models"),
            (cut_off(), "auth.openai.com did not answer within 30 s"),
        ],
    )
    def test_an_answer_that_tells_none_leaves_what_is_known(self, answer, why):
        ada(offered_models=["gpt-5.5"])
        assert self.poll(Upstream(**{ACCESS: answer})).endswith(f"1 did not (ada: {why}).")
        assert self.models() == {"gpt-5.5"}

    def test_under_another_plan_the_models_are_unknown_until_they_are_told_anew(self):
        ada(offered_models=["gpt-6-sol"], plan_type="plus")
        Upstream(**{ACCESS: usage(plan="free")}).poll()
        assert Account.objects.get().plan_type == "free"
        assert self.models() is None

    def test_a_catalogue_of_the_plan_before_is_not_kept(self):
        ada(plan_type="plus")
        upstream = Upstream(**{ACCESS: self.CATALOGUE})
        upstream.meanwhile = lambda: Account.objects.update(plan_type="free")
        self.poll(upstream)
        assert self.models() is None


class TestProxies:
    def test_an_account_with_a_proxy_is_asked_and_refreshed_by_that_alone(self):
        sealed = seal_text("socks5://p.example:1080", KEYS)
        ada(proxy=sealed, credentials=EXPIRING)
        seen = []
        upstream = Upstream(**{EXPIRING.access_token: usage()})

        async def fetch(url, headers, proxy):
            seen.append(proxy)
            return usage()

        async def post(url, fields, *, form=False, proxy=None):
            seen.append(proxy)
            return await MemoryIssuer.post(upstream.issuer, url, fields)

        upstream.fetch, upstream.refresher = fetch, lambda: refresher_with(post)
        upstream.poll()
        upstream.refresh()
        assert seen == ["socks5://p.example:1080"] * 2

    def test_one_whose_proxy_cannot_be_opened_is_not_asked_at_all(self):
        ada(proxy=seal_text("socks5://p.example:1080", OTHER_KEYS), credentials=EXPIRING)
        upstream = Upstream()
        assert upstream.poll() == "There is no sign-in whose usage could be asked for."
        assert "not to be refreshed any more: 1 account (ada)" in upstream.refresh()
        assert upstream.issuer.questions == []


def refresher_with(post):
    return Refresher(post, run_in_caller, Issuer(), KEYS, Waiting(wall=lambda: NOW))
