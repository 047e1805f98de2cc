"""The accounts of the upstream: who a request belongs to, and what its rate limits say."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.simulator.refusal import Refused, unauthorized, usage_limit, wrong_account
from gateway.simulator.values import Json

WINDOW_MINUTES = 300
DEFAULT_RESET = 3600.0
# No real token is as short as that, so a name shows nothing of a real one.
_PLAIN_TOKEN = re.compile(r"(?:sim|sk)-([A-Za-z0-9_.-]{1,20})")


@dataclass(slots=True)
class SimulatedAccount:
    """One account. Change `limited_until` (unix seconds) or `used_percent` at any time; the next answer shows
    it.

    With an `account_id` every request must carry it in `chatgpt-account-id`.
    """

    name: str
    account_id: str | None = None
    limited_until: float | None = None
    plan_type: str = "plus"
    used_percent: float = 10.0

    def check_limit(self, now: float) -> None:
        """Raise `Refused` (429 `usage_limit_reached`) while the account is limited."""
        if self.limited_until is not None and now < self.limited_until:
            raise Refused(usage_limit(int(self.limited_until), self.plan_type, now))


def identify(accounts: Mapping[str, SimulatedAccount] | None, headers: Mapping[str, str]) -> SimulatedAccount:
    """The account that the request's headers (names in lower case) name.

    Without `accounts` every token is an account of its own: `sim-ada` and `sk-ada` are called "ada", and longer
    tokens after their hash. Raises `Refused`: 401 for a missing or unknown token, 403 for another account's id.
    """
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Refused(unauthorized())
    if accounts is None:
        return SimulatedAccount(_name_of(token))
    account = accounts.get(token)
    if account is None:
        raise Refused(unauthorized())
    if account.account_id is not None and headers.get("chatgpt-account-id") != account.account_id:
        raise Refused(wrong_account())
    return account


def limit_headers(account: SimulatedAccount, now: float) -> dict[str, str]:
    """The rate-limit headers of an HTTP answer."""
    return {
        "x-codex-primary-used-percent": f"{account.used_percent:g}",
        "x-codex-primary-window-minutes": str(WINDOW_MINUTES),
        "x-codex-primary-reset-at": str(_window_end(now)),
        "x-codex-credits-has-credits": "false",
        "x-codex-credits-unlimited": "false",
    }


def limit_event(account: SimulatedAccount, now: float) -> Json:
    """The same as the event `codex.rate_limits` of a WebSocket."""
    window = {
        "used_percent": account.used_percent,
        "window_minutes": WINDOW_MINUTES,
        "reset_at": _window_end(now),
    }
    return {
        "type": "codex.rate_limits",
        "plan_type": account.plan_type,
        "rate_limits": {"allowed": True, "limit_reached": False, "primary": window, "secondary": None},
        "credits": {"has_credits": False, "unlimited": False, "balance": None},
        "metered_limit_name": None,
        "limit_name": None,
    }


def _window_end(now: float) -> int:
    window = WINDOW_MINUTES * 60
    return int(now // window + 1) * window


def _name_of(token: str) -> str:
    plain = _PLAIN_TOKEN.fullmatch(token)
    if plain is not None:
        return plain[1]
    return f"account-{hashlib.sha256(token.encode()).hexdigest()[:6]}"
