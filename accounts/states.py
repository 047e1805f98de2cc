"""The words for an account's kind, transport and state, and the literal table of how a state may change.

Pure: the model, the registry and the selection all ask here, so that the three cannot disagree.
"""

from __future__ import annotations

from enum import StrEnum

LAST_SECOND = 253_402_300_799  # of the year 9999, the last that can be stored and shown
# No usage window of an upstream is longer than a month. A reset further away is an error of theirs, and must
# not take the account out of the pool for years.
LONGEST_LIMIT = 32 * 24 * 3600.0


class Kind(StrEnum):
    """What an account is upstream."""

    CODEX = "codex"  # a ChatGPT sign-in
    OPENAI = "openai"  # a platform API key


class Transport(StrEnum):
    """How the gateway may reach an account; `auto` lets the traffic code decide for each turn."""

    AUTO = "auto"
    WEBSOCKET = "websocket"
    HTTP = "http"


class State(StrEnum):
    """What is known about an account. Only `limited` ends by itself."""

    ACTIVE = "active"
    LIMITED = "limited"  # at its usage limit
    PAUSED = "paused"  # rested by the operator, to be resumed
    NEEDS_LOGIN = "needs_login"  # its credentials are refused, missing or unreadable
    DISABLED = "disabled"  # taken out by the operator for good


class What(StrEnum):
    """What happened to an account, as its events say it."""

    ADDED = "added"
    SIGNED_IN = "signed_in"  # it has new credentials
    EXPORTED = "exported"  # its credentials were written to a file
    LIMITED = "limited"
    RECOVERED = "recovered"  # a limit is over
    PAUSED = "paused"
    DRAINING = "draining"  # no new turns; once those that run have ended it is drained
    DRAINED = "drained"
    RESUMED = "resumed"
    NEEDS_LOGIN = "needs_login"
    DISABLED = "disabled"
    ENABLED = "enabled"
    PLAN_CHANGED = "plan_changed"
    CIRCUIT_OPENED = "circuit_opened"
    CIRCUIT_CLOSED = "circuit_closed"
    REFRESHED = "refreshed"  # because somebody asked for it
    PROBED = "probed"
    PROXY_CHANGED = "proxy_changed"


# What it is called when an account goes from one state to the other. A limit may be replaced by another one; the
# operator's word, paused or disabled, is taken back by the operator alone; whoever needs a login gets it or is
# taken out.
TRANSITIONS: dict[tuple[State, State], What] = {
    (State.ACTIVE, State.LIMITED): What.LIMITED,
    (State.ACTIVE, State.PAUSED): What.PAUSED,
    (State.ACTIVE, State.NEEDS_LOGIN): What.NEEDS_LOGIN,
    (State.ACTIVE, State.DISABLED): What.DISABLED,
    (State.LIMITED, State.LIMITED): What.LIMITED,
    (State.LIMITED, State.ACTIVE): What.RECOVERED,
    (State.LIMITED, State.PAUSED): What.PAUSED,
    (State.LIMITED, State.NEEDS_LOGIN): What.NEEDS_LOGIN,
    (State.LIMITED, State.DISABLED): What.DISABLED,
    (State.PAUSED, State.ACTIVE): What.RESUMED,
    (State.PAUSED, State.DISABLED): What.DISABLED,
    (State.NEEDS_LOGIN, State.ACTIVE): What.SIGNED_IN,
    (State.NEEDS_LOGIN, State.DISABLED): What.DISABLED,
    (State.DISABLED, State.ACTIVE): What.ENABLED,
}


class IllegalTransition(ValueError):
    """An account was to go from one state to another that does not follow it: a defect in the caller."""


def transition(before: State, after: State) -> What:
    """What it is called to go from `before` to `after`; raises `IllegalTransition` if the table has no such pair."""
    try:
        return TRANSITIONS[before, after]
    except KeyError:
        raise IllegalTransition(f"An account that is {before} cannot become {after}.") from None


def state_at(state: State, until: float | None, now: float) -> State:
    """Return the state that counts at `now` (unix seconds): a limit whose `until` has come is over.

    A limit without `until` lasts until somebody changes the state.
    """
    if state is State.LIMITED and until is not None and now >= until:
        return State.ACTIVE
    return state
