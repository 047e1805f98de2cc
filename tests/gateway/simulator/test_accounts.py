import pytest

from gateway.simulator.accounts import SimulatedAccount, identify, limit_event, limit_headers
from gateway.simulator.refusal import Refused

NOW = 1_796_000_000.0


def bearer(token: str, **headers: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}", **{name.replace("_", "-"): value for name, value in headers.items()}}


def refused_status(accounts: dict[str, SimulatedAccount] | None, headers: dict[str, str]) -> int:
    with pytest.raises(Refused) as refused:
        identify(accounts, headers)
    return refused.value.refusal.status


def test_without_accounts_a_short_token_names_its_account() -> None:
    assert identify(None, bearer("sim-ada")).name == "ada"
    assert identify(None, bearer("sk-bo")).name == "bo"


def test_nothing_of_a_long_token_shows_in_the_name() -> None:
    token = "sk-" + "secret" * 8

    name = identify(None, bearer(token)).name

    assert name.startswith("account-")
    assert "secret" not in name
    assert name != identify(None, bearer(token + "x")).name


def test_a_missing_or_unknown_token_is_401() -> None:
    accounts = {"token-a": SimulatedAccount("ada")}

    assert refused_status(None, {}) == 401
    assert refused_status(None, {"authorization": "Basic abc"}) == 401
    assert refused_status(accounts, bearer("token-b")) == 401


def test_an_account_id_must_be_the_one_of_the_account() -> None:
    accounts = {"token-a": SimulatedAccount("ada", account_id="acc-a")}

    assert identify(accounts, bearer("token-a", chatgpt_account_id="acc-a")).name == "ada"
    assert refused_status(accounts, bearer("token-a", chatgpt_account_id="acc-b")) == 403
    assert refused_status(accounts, bearer("token-a")) == 403


def test_a_limit_refuses_until_its_time_has_come() -> None:
    account = SimulatedAccount("ada", limited_until=NOW + 60)

    with pytest.raises(Refused) as refused:
        account.check_limit(NOW)
    account.check_limit(NOW + 60)

    assert refused.value.refusal.details["resets_at"] == int(NOW) + 60


def test_headers_and_event_say_the_same_about_the_limits() -> None:
    account = SimulatedAccount("ada", used_percent=42.5)

    headers, event = limit_headers(account, NOW), limit_event(account, NOW)

    limits = event["rate_limits"]
    assert isinstance(limits, dict)
    assert headers["x-codex-primary-used-percent"] == "42.5"
    assert limits["primary"]["used_percent"] == 42.5
    assert headers["x-codex-primary-reset-at"] == str(limits["primary"]["reset_at"])
    assert NOW < limits["primary"]["reset_at"] <= NOW + 300 * 60
