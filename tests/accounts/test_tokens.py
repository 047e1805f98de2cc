import asyncio
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from asgiref.sync import async_to_sync
from django.db import OperationalError
from django.utils import timezone
from structlog.testing import capture_logs

from accounts.credentials import BrokenCredentials, CodexCredentials, seal, unseal
from accounts.issuer import Answer, Issuer
from accounts.models import Account, TokenLease
from accounts.tokens import Refreshed, Refresher, Result, Waiting, dead_token, renewed, run_in_caller
from tests.accounts.cast import HOUR, KEYS, NOW, stored
from tests.accounts.issuing import MemoryIssuer, access_token, cut_off

pytestmark = pytest.mark.django_db

OLD = CodexCredentials(access_token(0), "refresh-0", "id-0", "chatgpt-ada", datetime.fromtimestamp(NOW - HOUR, UTC))
REFUSED = OLD.access_token


@dataclass
class Clock:
    """Wall time that moves by sleeping alone."""

    now: float = NOW

    def wall(self):
        return self.now

    async def sleep(self, seconds):
        self.now += seconds
        await asyncio.sleep(0)


class Pool:
    """Ada in the database, an issuer, and any number of refreshers, as different processes have them."""

    def __init__(self, run=run_in_caller):
        self.ada = stored("ada", credentials=seal(OLD, KEYS))
        self.issuer = MemoryIssuer()
        self.clock = Clock()
        self.run = run

    def refresher(self):
        waiting = Waiting(5.0, self.clock.wall, self.clock.sleep)
        return Refresher(self.issuer.post, self.run, Issuer(), KEYS, waiting)

    @property
    def stored(self):
        return unseal(Account.objects.get(id=self.ada.id).credentials, KEYS)

    @property
    def state(self):
        return Account.objects.get(id=self.ada.id).state

    def refresh(self, refused=REFUSED) -> Refreshed:
        async def once():
            return await self.refresher().refresh(self.ada.id, refused)

        return async_to_sync(once)()


@pytest.fixture
def pool():
    return Pool()


class TestRefresh:
    def test_a_refused_token_is_replaced_by_the_issuer_s_and_stored(self, pool):
        refreshed = pool.refresh()
        assert refreshed.result is Result.REFRESHED
        assert refreshed.credentials == pool.stored
        assert pool.stored == replace(
            OLD,
            access_token=access_token(1),
            refresh_token="refresh-1",
            last_refresh=datetime.fromtimestamp(NOW, UTC),
        )

    def test_the_issuer_is_asked_as_the_codex_client_asks_it(self, pool):
        pool.refresh()
        assert pool.issuer.questions == [
            (
                "https://auth.openai.com/oauth/token",
                {
                    "client_id": "app_EMoamEEZ73f0CkXaXp7hrann",
                    "grant_type": "refresh_token",
                    "refresh_reason": "unauthorized_recovery",
                    "refresh_token": "refresh-0",
                },
                False,
            )
        ]

    def test_a_token_that_is_good_is_left_alone(self, pool):
        assert pool.refresh(None) == Refreshed(Result.FRESH, OLD)
        assert pool.issuer.questions == []

    def test_one_that_is_about_to_expire_says_so(self, pool):
        pool.clock.now = NOW + 10 * HOUR - 299
        assert pool.refresh(None).result is Result.REFRESHED
        assert pool.issuer.questions[0][1]["refresh_reason"] == "proactive_expiry"

    def test_a_token_that_another_process_has_stored_is_used(self, pool):
        pool.refresh()
        again = pool.refresh()
        assert again == Refreshed(Result.FRESH, pool.stored)
        assert len(pool.issuer.questions) == 1

    def test_an_account_that_cannot_be_refreshed_says_why(self, pool):
        Account.objects.update(state="paused")
        assert pool.refresh() == Refreshed(Result.REFUSED, why="The account is paused.")

    def test_no_token_is_printed(self, pool):
        refreshed = pool.refresh()
        assert "refresh-1" not in repr(refreshed)
        assert refreshed.credentials.access_token not in repr(refreshed)


class TestSingleFlight:
    def test_many_tasks_share_one_question(self, pool):
        async def many():
            refresher = pool.refresher()
            return await asyncio.gather(*(refresher.refresh(pool.ada.id, REFUSED) for _ in range(50)))

        assert set(async_to_sync(many)()) == {Refreshed(Result.REFRESHED, pool.stored)}
        assert len(pool.issuer.questions) == 1

    def test_many_processes_share_one_question_and_the_losers_find_the_winner_s_token(self, pool):
        async def many():
            return await asyncio.gather(*(pool.refresher().refresh(pool.ada.id, REFUSED) for _ in range(8)))

        results = async_to_sync(many)()
        assert sorted(refreshed.result for refreshed in results) == [Result.FRESH] * 7 + [Result.REFRESHED]
        assert {refreshed.credentials.refresh_token for refreshed in results} == {"refresh-1"}
        assert len(pool.issuer.questions) == 1
        assert pool.state == "active"

    def test_a_check_under_way_does_not_answer_for_a_token_that_is_refused(self, pool):
        async def both():
            refresher = pool.refresher()
            return await asyncio.gather(refresher.refresh(pool.ada.id), refresher.refresh(pool.ada.id, REFUSED))

        check, refreshed = async_to_sync(both)()
        assert (check.result, refreshed.result) == (Result.FRESH, Result.REFRESHED)

    def test_a_refresh_goes_on_when_whoever_asked_for_it_is_gone(self, pool):
        async def leave():
            refresher = pool.refresher()
            asking = asyncio.ensure_future(refresher.refresh(pool.ada.id, REFUSED))
            while not pool.issuer.questions:
                await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await refresher.close()

        async_to_sync(leave)()
        assert pool.stored.refresh_token == "refresh-1"
        assert TokenLease.objects.get().owner == ""

    def test_a_lease_that_never_comes_free_is_given_up_for_now(self, pool):
        TokenLease.objects.create(account=pool.ada, owner="other", until=timezone.now() + timedelta(hours=1))
        refreshed = pool.refresh()
        assert refreshed.result is Result.LATER
        assert refreshed.retry_at == pool.clock.now + 90
        assert pool.clock.now == NOW + 90
        assert pool.issuer.questions == []


class TestFailures:
    def test_a_dead_token_means_a_login(self, pool):
        pool.issuer.refresh_token = "used-elsewhere"
        with capture_logs() as logs:
            refreshed = pool.refresh()
        assert refreshed.result is Result.NEEDS_LOGIN
        assert refreshed.why == "The issuer refuses the refresh token (refresh_token_reused)."
        assert pool.state == "needs_login"
        assert logs == [
            {
                "event": "account_needs_login",
                "account": pool.ada.id,
                "error": "refresh_token_reused",
                "log_level": "warning",
            }
        ]

    def test_a_crash_between_answer_and_store_is_what_the_operator_reads_of(self, pool):
        asyncio.run(pool.issuer.post("", {"refresh_token": "refresh-0"}))
        TokenLease.objects.create(account=pool.ada, owner="crashed", until=timezone.now() - timedelta(seconds=1))
        pool.refresh()
        assert Account.objects.get().state_reason == (
            "The issuer refuses the refresh token (refresh_token_reused). "
            "A process that was refreshing it ended before it could store the new one."
        )

    def test_a_loser_never_marks_a_healthy_account(self, pool):
        winner = replace(OLD, access_token=access_token(1), refresh_token="refresh-1")
        pool.issuer.answers = [Answer(401, {"error": "refresh_token_reused"})]

        async def run(work, /, *args, **kwargs):
            if pool.issuer.questions:
                await run_in_caller(Account.objects.filter(id=pool.ada.id).update, credentials=seal(winner, KEYS))
            return await run_in_caller(work, *args, **kwargs)

        pool.run = run
        assert pool.refresh() == Refreshed(Result.FRESH, winner)
        assert pool.state == "active"

    @pytest.mark.parametrize(
        ("answer", "why"),
        [
            (cut_off(), "auth.openai.com did not answer within 30 s."),
            (Answer(503), "The issuer answered with status 503 and no access token."),
            (Answer(200, {}), "The issuer answered with status 200 and no access token."),
            (Answer(400, {"error": "invalid_request"}), "The issuer answered with status 400 and no access token."),
            (
                Answer(200, {"access_token": "a b"}),
                "The access_token contains blanks, line ends or characters outside ASCII; copy it again.",
            ),
        ],
    )
    def test_anything_else_may_pass_and_is_tried_later(self, pool, answer, why):
        pool.issuer.answers = [answer]
        assert pool.refresh() == Refreshed(Result.LATER, why=why, retry_at=NOW + 10)
        assert pool.state == "active"
        assert pool.stored == OLD
        assert pool.refresh() == Refreshed(Result.LATER, why=f"The last try failed: {why}", retry_at=NOW + 10)
        pool.clock.now += 10
        assert pool.refresh().result is Result.REFRESHED

    def test_a_token_that_is_refused_again_just_after_its_refresh_is_not_refreshed_for_ever(self, pool):
        new = pool.refresh().credentials
        assert pool.refresh(new.access_token).result is Result.REFUSED
        assert pool.state == "needs_login"
        assert len(pool.issuer.questions) == 1


class BadDatabase:
    """A `Run` whose database cannot store for a while."""

    def __init__(self, failures):
        self.failures = failures

    async def __call__(self, work, /, *args, **kwargs):
        if work.__name__ == "store" and self.failures:
            self.failures -= 1
            raise OperationalError("database is locked")
        return await run_in_caller(work, *args, **kwargs)


class TestBadDatabase:
    def test_new_tokens_are_stored_as_soon_as_the_database_takes_them(self):
        pool = Pool(BadDatabase(3))
        with capture_logs() as logs:
            assert pool.refresh().result is Result.REFRESHED
        assert pool.stored.refresh_token == "refresh-1"
        assert [entry["event"] for entry in logs] == ["tokens_not_stored"] * 3

    def test_until_then_they_are_used_from_memory_and_the_old_ones_are_never_sent_again(self):
        pool = Pool(BadDatabase(10))

        async def twice():
            refresher = pool.refresher()
            results = [await refresher.refresh(pool.ada.id, REFUSED) for _ in range(2)]
            await refresher.close()
            return results

        with capture_logs():
            first, second = async_to_sync(twice)()
        assert (first.result, second.result) == (Result.REFRESHED, Result.FRESH)
        assert first.credentials == second.credentials == pool.stored
        assert len(pool.issuer.questions) == 1

    def test_they_are_stored_before_anything_else_is_done_for_the_account(self):
        pool = Pool(BadDatabase(5))

        async def twice():
            refresher = pool.refresher()
            return [await refresher.refresh(pool.ada.id, REFUSED) for _ in range(2)]

        with capture_logs():
            first, second = async_to_sync(twice)()
        assert second == Refreshed(Result.FRESH, pool.stored)
        assert first.credentials == pool.stored


class TestAnswers:
    @pytest.mark.parametrize(
        "code", ["refresh_token_expired", "refresh_token_reused", "refresh_token_invalidated", "token_revoked"]
    )
    def test_a_dead_token_is_told_in_any_of_three_places(self, code):
        for body in ({"error": {"code": code}}, {"error": code}, {"code": code}):
            assert dead_token(Answer(400, body)) == code

    def test_401_is_a_dead_token_whatever_it_says(self):
        assert dead_token(Answer(401, {"error": {"code": "other"}})) == "HTTP 401"

    @pytest.mark.parametrize("answer", [Answer(400, {"error": "slow_down"}), Answer(500), Answer(403, {"code": ["x"]})])
    def test_everything_else_is_not(self, answer):
        assert dead_token(answer) is None

    def test_what_the_issuer_does_not_send_stays(self):
        new = renewed(OLD, Answer(200, {"access_token": "a"}), NOW)
        assert (new.access_token, new.refresh_token, new.id_token) == ("a", "refresh-0", "id-0")
        assert renewed(OLD, Answer(200, {"access_token": "a", "id_token": "id-1"}), NOW).id_token == "id-1"

    def test_an_error_is_no_answer_although_it_has_a_token(self):
        with pytest.raises(BrokenCredentials, match="status 500"):
            renewed(OLD, Answer(500, {"access_token": "a"}), NOW)
