import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from accounts.credentials import CodexCredentials
from accounts.issuer import Answer, Issuer
from accounts.login import Authorized, DeviceCode, LoginFailed, Pace, exchange, poll, sign_in, start
from tests.accounts.cast import NOW, jwt
from tests.accounts.issuing import AUTHORIZED, CODE, TOKENS, MemoryIssuer, cut_off

ISSUER = Issuer()
DEVICE = DeviceCode("device-1", "ABCD-1234", ISSUER.page, 5.0)
PENDING = Answer(403)


@dataclass
class Time:
    """Time that moves by sleeping alone."""

    now: float = 0.0

    def pace(self):
        return Pace(lambda: self.now, lambda: NOW + self.now, self.sleep)

    async def sleep(self, seconds):
        self.now += seconds
        await asyncio.sleep(0)


def answering(*answers):
    given = [Answer(200, answer) if isinstance(answer, dict) else answer for answer in answers]
    return MemoryIssuer(answers=given)


class TestStart:
    async def test_the_issuer_gives_a_code_for_the_person_and_a_pace_for_us(self):
        issuer = answering(CODE)
        assert await start(issuer.post, ISSUER) == DEVICE
        assert issuer.questions == [(ISSUER.user_code_url, {"client_id": ISSUER.client_id}, False)]

    @pytest.mark.parametrize(
        ("told", "interval"),
        [("7", 7), (7, 7), ("0", 1), ("1e9", 60), ("soon", 5), ("nan", 5), (None, 5), ([], 5), (10**400, 5)],
    )
    async def test_the_pace_is_within_reason_whatever_it_tells(self, told, interval):
        assert (await start(answering(CODE | {"interval": told}).post, ISSUER)).interval == interval

    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            (Answer(404), "gives no code .status 404.; try again later"),
            ({"device_auth_id": "device-1"}, "has no user_code"),
            ({"user_code": "ABCD-1234"}, "has no device_auth_id"),
        ],
    )
    async def test_an_answer_without_a_code_ends_it(self, answer, message):
        with pytest.raises(LoginFailed, match=message):
            await start(answering(answer).post, ISSUER)

    def test_the_code_is_printed_by_who_shows_it_alone(self):
        assert "ABCD-1234" not in repr(DEVICE)
        assert "secret" not in repr(Authorized("secret", "secret"))


class TestPoll:
    @pytest.mark.parametrize("status", [403, 404])
    async def test_until_the_person_is_done_there_is_nothing(self, status):
        issuer = answering(Answer(status))
        assert await poll(issuer.post, ISSUER, DEVICE) is None
        asked = {"device_auth_id": "device-1", "user_code": "ABCD-1234"}
        assert issuer.questions == [(ISSUER.device_token_url, asked, False)]

    async def test_then_there_is_a_code_with_its_verifier(self):
        assert await poll(answering(AUTHORIZED).post, ISSUER, DEVICE) == Authorized("code-1", "verifier-1")

    @pytest.mark.parametrize("answer", [Answer(400), Answer(500), {}, {"authorization_code": "code-1"}])
    async def test_anything_else_ends_it(self, answer):
        with pytest.raises(LoginFailed):
            await poll(answering(answer).post, ISSUER, DEVICE)


class TestExchange:
    async def exchanged(self, answer):
        issuer = answering(answer)
        return issuer, await exchange(issuer.post, ISSUER, Authorized("code-1", "verifier-1"), NOW)

    async def test_the_code_becomes_a_sign_in_with_the_account_its_token_is_for(self):
        _, imported = await self.exchanged(TOKENS)
        assert imported.credentials == CodexCredentials(
            TOKENS["access_token"],
            "refresh-0",
            TOKENS["id_token"],
            "chatgpt-ada",
            datetime.fromtimestamp(NOW, UTC),
        )
        assert (imported.email, imported.plan_type) == ("ada@example.com", "plus")

    async def test_it_is_asked_for_by_a_form(self):
        issuer, _ = await self.exchanged(TOKENS)
        assert issuer.questions == [
            (
                ISSUER.token_url,
                {
                    "grant_type": "authorization_code",
                    "client_id": ISSUER.client_id,
                    "code": "code-1",
                    "redirect_uri": "https://auth.openai.com/deviceauth/callback",
                    "code_verifier": "verifier-1",
                },
                True,
            )
        ]

    async def test_a_token_that_names_no_account_leaves_it_unknown(self):
        _, imported = await self.exchanged(TOKENS | {"id_token": jwt()})
        assert imported.credentials.account_id == ""

    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            (Answer(400), "gives no tokens .status 400."),
            ({"access_token": "a"}, "has no refresh_token"),
            ({"access_token": "a", "refresh_token": "secret\n"}, "cannot be used: The refresh_token contains"),
        ],
    )
    async def test_without_good_tokens_it_ends(self, answer, message):
        with pytest.raises(LoginFailed, match=message) as caught:
            await self.exchanged(answer)
        assert "secret" not in str(caught.value)


class TestSignIn:
    async def sign_in(self, issuer, time=None):
        shown, steps = [], []
        pace = (time or Time()).pace()
        imported = await sign_in(issuer.post, ISSUER, shown.append, lambda: steps.append(pace.monotonic()), pace)
        return imported, shown, steps

    async def test_it_asks_at_its_pace_until_the_person_is_done(self):
        issuer = answering(CODE, PENDING, PENDING, AUTHORIZED, TOKENS)
        imported, shown, steps = await self.sign_in(issuer)
        assert imported.email == "ada@example.com"
        assert shown == [DEVICE]
        assert steps == [5, 10]
        assert imported.credentials.last_refresh == datetime.fromtimestamp(NOW + 15, UTC)

    async def test_an_answer_that_does_not_come_is_asked_for_again(self):
        issuer = answering(CODE, cut_off(), AUTHORIZED, TOKENS)
        _, _, steps = await self.sign_in(issuer)
        assert steps == [5]

    async def test_after_a_quarter_of_an_hour_it_is_over(self):
        issuer, time = answering(CODE, *[PENDING] * 180), Time()
        with pytest.raises(LoginFailed, match="quarter of an hour; begin again"):
            await self.sign_in(issuer, time)
        assert time.now == 15 * 60
        assert issuer.answers == []
