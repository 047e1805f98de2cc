"""Probes that cost nothing."""

from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync

from accounts import probes
from accounts.asking import Asker
from accounts.circuit import PROBE_PATIENCE, CircuitState
from accounts.circuit_store import save_circuit
from accounts.circuits import CircuitChange, SharedCircuit
from accounts.issuer import Answer, Issuer, Unreachable
from accounts.models import Account, AccountCircuit, AccountEvent
from accounts.tokens import Refresher, Waiting, run_in_caller
from tests.accounts.cast import KEYS, NOW, stored
from tests.accounts.issuing import MemoryIssuer

pytestmark = pytest.mark.django_db

OPEN = SharedCircuit(1, "a process", CircuitState.OPEN, since=NOW - 10, until=NOW, ejections=1)


class Upstream:
    """Answers every question alike; `meanwhile` happens before it does."""

    def __init__(self, answer=None):
        self.answer = answer or Answer(200, {"models": []})
        self.asked = []
        self.meanwhile = lambda: None

    async def fetch(self, url, headers, proxy=None):
        self.asked.append((url, proxy))
        await run_in_caller(self.meanwhile)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def _asker(self):
        refresher = Refresher(MemoryIssuer().post, run_in_caller, Issuer(), KEYS, Waiting(wall=lambda: NOW))
        return Asker(self.fetch, refresher, run_in_caller, KEYS)

    def probe(self, now=NOW):
        async def run():
            return await probes.probe_circuits(self._asker(), lambda: now)

        return async_to_sync(run)()

    def probe_account(self, account_id):
        async def run():
            return await probes.probe_account(self._asker(), account_id, "admin")

        return async_to_sync(run)()


def ejected(name="ada", **values):
    account = stored(name, kind="codex", **values)
    save_circuit(CircuitChange(account.id, OPEN, "somebody"))
    return account


def circuit():
    return AccountCircuit.objects.get()


class TestUpkeep:
    def test_healthy_accounts_are_not_asked(self):
        stored("ada")
        upstream = Upstream()
        assert upstream.probe() == "No circuit is to be probed."
        assert upstream.asked == []

    def test_one_whose_ejection_lasts_is_left_alone(self):
        ejected()
        assert Upstream().probe(NOW - 1) == "No circuit is to be probed."

    def test_one_whose_ejection_is_over_is_asked_for_its_models(self):
        ejected()
        upstream = Upstream()
        assert upstream.probe() == "Probed: answered: 1 account (ada)."
        assert upstream.asked == [("https://chatgpt.com/backend-api/codex/models?client_version=0.171.0", None)]
        assert (circuit().state, circuit().good_probes, circuit().probed_at) == (CircuitState.HALF_OPEN, 1, None)

    def test_the_last_good_probe_is_left_to_a_turn(self):
        ejected()
        Upstream().probe()
        assert Upstream().probe() == "No circuit is to be probed."

    @pytest.mark.parametrize("status", [403, 500, 503])
    def test_a_bad_answer_ejects_it_again_for_longer(self, status):
        ejected()
        assert Upstream(Answer(status)).probe() == "Probed: failed: 1 account (ada)."
        assert (circuit().state, circuit().ejections, circuit().failed_as) == (CircuitState.OPEN, 2, "probe")
        assert circuit().until.timestamp() == NOW + 20

    @pytest.mark.parametrize("answer", [Unreachable("x could not be asked"), Answer(429)])
    def test_what_says_nothing_changes_nothing(self, answer):
        ejected()
        assert Upstream(answer).probe() == "Probed: told nothing: 1 account (ada)."
        assert (circuit().state, circuit().good_probes, circuit().probed_at) == (CircuitState.HALF_OPEN, 0, None)

    def test_while_a_turn_is_the_probe_nobody_else_is(self):
        account = ejected()
        half_open = SharedCircuit(2, "a process", CircuitState.HALF_OPEN, since=NOW, probed_at=NOW)
        save_circuit(CircuitChange(account.id, half_open, "somebody"))
        assert Upstream().probe(NOW + 1) == "No circuit is to be probed."
        assert Upstream().probe(NOW + PROBE_PATIENCE) == "Probed: answered: 1 account (ada)."

    def test_what_others_do_to_it_meanwhile_stays(self):
        account = ejected()
        upstream = Upstream(Answer(500))
        reset = SharedCircuit(3, "", since=NOW + 1)
        upstream.meanwhile = lambda: save_circuit(CircuitChange(account.id, reset, "admin"))
        upstream.probe()
        assert circuit().state == CircuitState.CLOSED

    def test_one_without_credentials_is_not_asked(self):
        ejected(credentials="")
        upstream = Upstream()
        assert upstream.probe() == "Probed: told nothing: 1 account (ada)."
        assert upstream.asked == []


class TestOperator:
    def test_asks_any_account_and_the_answer_is_an_event(self):
        ada = stored("ada", state="paused")
        assert Upstream().probe_account(ada.id) == (True, "Probed ada: answered with status 200.")
        event = AccountEvent.objects.get()
        assert (event.what, event.why, event.by) == ("probed", "answered with status 200", "admin")

    def test_is_told_what_went_wrong(self):
        ada = stored("ada")
        told = Upstream(Unreachable("chatgpt.com did not answer within 30 s.")).probe_account(ada.id)
        assert told == (False, "Probed ada: chatgpt.com did not answer within 30 s.")

    def test_cannot_ask_one_without_credentials_or_one_that_is_gone(self):
        ada = stored("ada", credentials="")
        assert "no credentials" in Upstream().probe_account(ada.id).text
        Account.objects.all().delete()
        assert "There is no account" in Upstream().probe_account(ada.id).text
