"""Circuits in the database, and what an operator may do to them."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from accounts.circuit import CircuitState
from accounts.circuit_store import save_circuit
from accounts.circuits import UNTOUCHED, CircuitChange, SharedCircuit
from accounts.control import open_circuit, reset_circuit
from accounts.models import Account, AccountCircuit, AccountEvent
from accounts.store import load_snapshots
from tests.accounts.cast import KEYS, NOW, meanwhile, stored

pytestmark = pytest.mark.django_db

TURN = UUID(int=7)
OPENED = SharedCircuit(
    1, "a process", CircuitState.OPEN, since=NOW, until=NOW + 10, ejections=1, failed_as="upstream_lost"
)


def change(account, **values):
    return CircuitChange(account.id, replace(OPENED, **values), TURN)


def circuit(account):
    (snapshot,) = [each for each in load_snapshots(KEYS, 8) if each.id == account.id]
    return snapshot.circuit


def told():
    return [(event.what, event.why, event.by or event.turn) for event in AccountEvent.objects.order_by("id")]


class TestSaving:
    def test_an_account_that_never_failed_has_an_untouched_circuit(self):
        assert circuit(stored("ada")) == UNTOUCHED

    def test_it_is_loaded_as_it_was_saved_and_makes_registries_look(self):
        ada = stored("ada")
        assert save_circuit(change(ada))
        assert circuit(ada) == OPENED
        assert Account.objects.get().revision == 2

    def test_that_it_opened_and_closed_is_told_and_that_it_is_probed_is_not(self):
        ada = stored("ada")
        half_open = {"state": CircuitState.HALF_OPEN, "until": None, "probed_at": NOW + 10}
        save_circuit(change(ada))
        save_circuit(change(ada, version=2, **half_open))
        save_circuit(change(ada, version=3, since=NOW + 11, until=NOW + 31, ejections=2))
        save_circuit(change(ada, version=4, **half_open))
        save_circuit(change(ada, version=5, state=CircuitState.CLOSED, until=None))
        assert told() == [
            ("circuit_opened", "the newest failure: upstream_lost; for 10 s", TURN),
            ("circuit_opened", "the newest failure: upstream_lost; for 20 s", TURN),
            ("circuit_closed", "", TURN),
        ]

    def test_who_comes_second_changes_nothing(self):
        ada = stored("ada")
        save_circuit(change(ada))
        assert not save_circuit(change(ada, until=NOW + 99))
        assert circuit(ada) == OPENED
        assert len(told()) == 1

    @pytest.mark.parametrize(
        "values",
        [
            {"state": CircuitState.OPEN, "until": None},
            {"state": CircuitState.CLOSED, "until": timezone.now()},
            {"state": CircuitState.CLOSED, "good_probes": 1},
            {"state": "ajar"},
        ],
    )
    def test_a_circuit_that_cannot_be_is_refused_by_the_database(self, values):
        with pytest.raises(IntegrityError), transaction.atomic():
            AccountCircuit.objects.create(account=stored("ada"), **values)


class TestOperator:
    def test_opens_it_for_some_minutes_and_resets_it(self):
        ada = stored("ada")
        assert open_circuit(ada.id, "admin") == (True, "Opened the circuit of ada for 5 minutes.")
        assert circuit(ada).state is CircuitState.OPEN
        assert open_circuit(ada.id, "admin") == (False, "The circuit of ada is open already.")
        assert reset_circuit(ada.id, "admin") == (True, "Reset the circuit of ada; it takes turns again.")
        assert (circuit(ada).state, circuit(ada).ejections) == (CircuitState.CLOSED, 0)
        assert reset_circuit(ada.id, "admin") == (False, "The circuit of ada is closed already.")
        assert told() == [("circuit_opened", "for 300 s", "admin"), ("circuit_closed", "", "admin")]

    def test_opens_one_again_whose_time_is_over(self):
        ada = stored("ada")
        save_circuit(change(ada))
        assert open_circuit(ada.id, "admin").changed

    def test_resets_one_that_is_being_probed(self):
        ada = stored("ada")
        save_circuit(change(ada, state=CircuitState.HALF_OPEN, until=None, probed_at=NOW))
        assert reset_circuit(ada.id, "admin").changed

    @pytest.mark.parametrize("act", [open_circuit, reset_circuit])
    def test_cannot_do_it_to_an_account_that_is_gone(self, act):
        assert act(77, "admin") == (False, "There is no account 77 any more.")

    def test_is_not_hindered_by_a_turn_that_changes_it_in_the_same_moment(self):
        ada = stored("ada")
        save_circuit(change(ada))
        half_open = change(ada, version=2, state=CircuitState.HALF_OPEN, until=None, probed_at=NOW)
        with meanwhile("UPDATE", lambda: save_circuit(half_open)):
            assert reset_circuit(ada.id, "admin").changed
        assert circuit(ada).version == 3

    def test_gives_up_on_one_that_changes_all_the_time(self):
        ada = stored("ada")
        save_circuit(change(ada))
        version = iter(range(2, 100))

        def disturb():
            save_circuit(change(ada, version=next(version)))

        with meanwhile("UPDATE", disturb, times=5):
            assert "changes all the time" in reset_circuit(ada.id, "admin").text
