"""What the operator decides about an account, in the admin or by a command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from accounts.models import Account
from accounts.registry import StateChange
from accounts.states import State, What
from accounts.store import ATTEMPTS, change_state


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
_RESUME = _Decision("resumed", State.ACTIVE, What.RESUMED, frozenset({State.PAUSED, State.LIMITED, State.NEEDS_LOGIN}))
_DISABLE = _Decision("disabled", State.DISABLED, What.DISABLED, frozenset(State) - {State.DISABLED})
_ENABLE = _Decision("enabled", State.ACTIVE, What.ENABLED, frozenset({State.DISABLED}))

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
