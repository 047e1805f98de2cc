"""The words for an account's kind, transport and state, and what a state means at a given time.

Pure: the model, the registry and the selection all ask here, so that the three cannot disagree.
"""

from __future__ import annotations

from enum import StrEnum

LAST_SECOND = 253_402_300_799  # of the year 9999, the last that can be stored and shown


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


def state_at(state: State, until: float | None, now: float) -> State:
    """Return the state that counts at `now` (unix seconds): a limit whose `until` has come is over.

    A limit without `until` lasts until somebody changes the state.
    """
    if state is State.LIMITED and until is not None and now >= until:
        return State.ACTIVE
    return state
