"""What the operator decides about an account, in the admin or by a command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from django.db import transaction
from django.utils import timezone

from accounts.circuit import Circuit, CircuitSettings, CircuitState, opened, reset
from accounts.circuit_store import save_circuit
from accounts.circuits import UNTOUCHED, CircuitChange, SharedCircuit, restored, shared
from accounts.models import Account
from accounts.registry import StateChange
from accounts.states import State, What
from accounts.store import ATTEMPTS, UPKEEP, change_state, note_event


class Happened(NamedTuple):
    """Whether the account changed, and one sentence for the operator about it."""

    changed: bool
    text: str


@dataclass(frozen=True, slots=True)
class _Decision:
    word: str
    to: State
    what: What
    allowed: frozenset[State]


_PAUSE = _Decision("paused", State.PAUSED, What.PAUSED, frozenset({State.ACTIVE, State.LIMITED}))
_DRAIN = _Decision("drained", State.PAUSED, What.DRAINING, frozenset({State.ACTIVE, State.LIMITED}))
_RESUME = _Decision("resumed", State.ACTIVE, What.RESUMED, frozenset({State.PAUSED, State.LIMITED, State.NEEDS_LOGIN}))
_DISABLE = _Decision("disabled", State.DISABLED, What.DISABLED, frozenset(State) - {State.DISABLED})
_ENABLE = _Decision("enabled", State.ACTIVE, What.ENABLED, frozenset({State.DISABLED}))

# Why an account is paused that is to be drained, as long as turns may run on it.
DRAINING = "draining"
# How an account is, and what the operator can do about it, where that forbids what was asked for.
_STANDINGS = {
    State.ACTIVE: ("is active", "it takes turns"),
    State.LIMITED: ("is limited", "it takes turns again by itself"),
    State.PAUSED: ("is paused", "resume it first"),
    State.NEEDS_LOGIN: ("needs a login", "sign it in with login_account first"),
    State.DISABLED: ("is disabled", "enable it first"),
}


def pause(account_id: int, by: str, why: str = "") -> Happened:
    """Give the account no more turns until it is resumed; those that run end as they would.

    `by` is who decided it, `why` is for people; both are kept in the account's events.
    """
    return _decide(_PAUSE, account_id, by, why)


def drain(account_id: int, by: str) -> Happened:
    """Pause the account, and have it told when the last of its turns has ended, see `drained`."""
    happened = _decide(_DRAIN, account_id, by, DRAINING)
    return happened._replace(text=f"{happened.text} What runs may end.") if happened.changed else happened


def drained(account_id: int) -> bool:
    """The last turn of an account that was draining has ended; False when it is not draining any more."""
    with transaction.atomic():
        draining = Account.objects.filter(id=account_id, state=State.PAUSED, state_reason=DRAINING)
        return draining.update(state_reason="drained") == 1 and note_event(account_id, What.DRAINED, "", UPKEEP)


def resume(account_id: int, by: str) -> Happened:
    """Give a paused account turns again, or try one that is limited or needs a login once more before its time."""
    return _decide(_RESUME, account_id, by)


def disable(account_id: int, by: str, why: str = "") -> Happened:
    """Take the account out for good, until it is enabled."""
    return _decide(_DISABLE, account_id, by, why)


def enable(account_id: int, by: str) -> Happened:
    """Take a disabled account back in."""
    return _decide(_ENABLE, account_id, by)


def _decide(decision: _Decision, account_id: int, by: str, why: str = "") -> Happened:
    for _ in range(ATTEMPTS):
        account = Account.objects.filter(id=account_id).only("name", "state").first()
        if account is None:
            return Happened(False, f"There is no account {account_id} any more.")
        state = State(account.state)
        if state not in decision.allowed:
            return Happened(False, _refusal(account, state, decision))
        reason = "" if decision.to is State.ACTIVE else why or f"{decision.word} by {by}"
        if change_state(StateChange(account_id, state, decision.to, reason, by=by, what=decision.what)):
            return Happened(True, f"{decision.word.capitalize()} {account.name}.")
    return Happened(False, f"Account {account_id} was changed by others all the time; try again.")


def _refusal(account: Account, state: State, decision: _Decision) -> str:
    standing, remedy = _STANDINGS[state]
    if state is decision.to:
        return f"{account.name} {standing} already."
    return f"{account.name} {standing}, so it cannot be {decision.word}; {remedy}."


def open_circuit(account_id: int, by: str) -> Happened:
    """Keep turns from the account for a few minutes, as if it had failed; `by` is who decided it."""
    for _ in range(ATTEMPTS):
        account = _find(account_id)
        if account is None:
            break
        stored, now = stored_circuit(account), timezone.now().timestamp()
        circuit = restored(stored)
        if circuit.shut_for(now):
            return Happened(False, f"The circuit of {account.name} is open already.")
        if circuit.state is CircuitState.OPEN:
            circuit = Circuit()  # its time is over, which nobody has made use of yet
        circuit = opened(circuit, now, CircuitSettings())
        if _write(account, stored, circuit, by):
            return Happened(True, f"Opened the circuit of {account.name} for {circuit.shut_for(now) / 60:.0f} minutes.")
    return _gone_or_restless(account_id)


def reset_circuit(account_id: int, by: str) -> Happened:
    """Forget what speaks against the account: it takes turns like any other again."""
    for _ in range(ATTEMPTS):
        account = _find(account_id)
        if account is None:
            break
        stored = stored_circuit(account)
        if stored.state is CircuitState.CLOSED:
            return Happened(False, f"The circuit of {account.name} is closed already.")
        if _write(account, stored, reset(restored(stored), timezone.now().timestamp()), by):
            return Happened(True, f"Reset the circuit of {account.name}; it takes turns again.")
    return _gone_or_restless(account_id)


def _write(account: Account, stored: SharedCircuit, circuit: Circuit, by: str) -> bool:
    return save_circuit(CircuitChange(account.id, shared(circuit, stored.version + 1, ""), by))


def _find(account_id: int) -> Account | None:
    return Account.objects.filter(id=account_id).select_related("circuit").defer("credentials").first()


def stored_circuit(account: Account) -> SharedCircuit:
    """What is stored of the account's circuit; load the account together with `circuit`."""
    row = getattr(account, "circuit", None)
    return UNTOUCHED if row is None else row.shared()


def _gone_or_restless(account_id: int) -> Happened:
    if Account.objects.filter(id=account_id).exists():
        return Happened(False, f"The circuit of account {account_id} changes all the time; try again.")
    return Happened(False, f"There is no account {account_id} any more.")
