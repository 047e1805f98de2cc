import asyncio
import signal
from io import StringIO

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from accounts.credentials import unseal
from accounts.issuer import Answer
from accounts.login import Pace
from accounts.models import Account
from tests.accounts.cast import NOW, stored
from tests.accounts.issuing import AUTHORIZED, CODE, TOKENS, MemoryIssuer, cut_off

pytestmark = pytest.mark.django_db


async def no_time(seconds):
    await asyncio.sleep(0)


PACE = Pace(monotonic=lambda: 0.0, wall=lambda: NOW, sleep=no_time)


def issuer():
    return MemoryIssuer(
        answers=[Answer(200, CODE), Answer(403), Answer(403), Answer(200, AUTHORIZED), Answer(200, TOKENS)]
    )


def login(*arguments, issuer, pace=PACE):
    out = StringIO()
    sentence = call_command("login_account", *arguments, post=issuer.post, pace=pace, stdout=out)
    return out.getvalue().removesuffix(f"{sentence}\n"), sentence


class TestNewAccount:
    def test_the_code_is_shown_and_the_account_is_added(self):
        shown, sentence = login("ada", "--priority", "5", issuer=issuer())
        assert shown == (
            "Open https://auth.openai.com/codex/device\nand enter the code ABCD-1234 within a quarter of an hour.\n.."
        )
        assert sentence == "Added ada (ada@example.com), which is active."
        ada = Account.objects.get()
        assert (ada.kind, ada.account_id, ada.plan_type, ada.priority) == ("codex", "chatgpt-ada", "plus", 5)
        assert unseal(ada.credentials, settings.TOKEN_KEYS).refresh_token == "refresh-0"


class TestKnownAccount:
    def test_one_that_needs_a_login_is_active_again(self):
        stored("ada", state="needs_login")
        assert login("ada", issuer=issuer())[1] == "Signed in ada (ada@example.com), which is active."
        assert Account.objects.get().state == "active"

    def test_another_person_s_sign_in_never_comes_under_its_name(self):
        stored("ada", account_id="chatgpt-bo", state="needs_login")
        with pytest.raises(CommandError, match="another ChatGPT account"):
            login("ada", issuer=issuer())
        assert Account.objects.get().state == "needs_login"


class TestRefusing:
    def refused(self, *arguments, issuer, **options):
        with pytest.raises(CommandError) as caught:
            login(*arguments, issuer=issuer, **options)
        return str(caught.value)

    def test_what_cannot_end_well_is_refused_before_anybody_is_asked_for_anything(self):
        stored("key", kind="openai")
        asked = issuer()
        assert "which has a key and no sign-in" in self.refused("key", issuer=asked)
        assert "must begin with a letter" in self.refused("a b", issuer=asked)
        assert asked.questions == []

    def test_an_issuer_that_does_not_answer_is_told(self):
        assert "did not answer" in self.refused("ada", issuer=MemoryIssuer(answers=[cut_off()]))

    def test_an_issuer_that_refuses_is_told(self):
        assert "gives no code" in self.refused("ada", issuer=MemoryIssuer(answers=[Answer(500)]))

    def test_an_address_that_cannot_be_used_names_its_variable(self, monkeypatch):
        monkeypatch.setenv("GATEWAY_ISSUER_URL", "http://auth.example.com")
        assert "GATEWAY_ISSUER_URL cannot be used" in self.refused("ada", issuer=issuer())

    def test_stopping_it_stores_nothing(self):
        # As in a process of its own, whatever has run in this one.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)

        async def interrupted(seconds):
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(60)

        stopping = Pace(monotonic=lambda: 0.0, wall=lambda: NOW, sleep=interrupted)
        try:
            assert self.refused("ada", issuer=issuer(), pace=stopping) == "Stopped; nothing was stored."
        finally:
            signal.signal(signal.SIGINT, before)
        assert not Account.objects.exists()

    def test_the_real_issuer_is_asked_over_the_network(self, monkeypatch):
        monkeypatch.setenv("GATEWAY_ISSUER_URL", "http://127.0.0.1:9")
        with pytest.raises(CommandError, match=r"127\.0\.0\.1 could not be asked"):
            call_command("login_account", "ada")
