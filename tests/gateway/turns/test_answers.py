"""What clients get for each error, on both routes and every transport."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.consumers.render import document, failed, frame
from gateway.errors import (
    AccountsLimited,
    ClientError,
    ConnectFailed,
    GatewayError,
    InvalidBody,
    LedgerUnavailable,
    LivenessExpired,
    NoUsableAccount,
    Overloaded,
    OwnerBusy,
    OwnerGone,
    Refusal,
    Stopping,
    Unauthorized,
    UpstreamLost,
    UpstreamRefused,
    UpstreamSilent,
)
from gateway.turns.answers import Answer, answer
from gateway.turns.request import Route

CODEX, V1 = Route.CODEX, Route.V1
BOTH = (CODEX, V1)
# A Codex client that gets one of these without Retry-After gives up at once or tries thirty times within seconds.
NEEDS_RETRY_AFTER = (429, 503)
LIMIT_TYPES = ("usage_limit_reached", "usage_not_included", "insufficient_quota")


def refused(status: int, **says: object) -> UpstreamRefused:
    """An upstream's refusal with a body as it would come."""
    error = {"message": "Because.", **{name: value for name, value in says.items() if name != "headers"}}
    headers = says.get("headers")
    return UpstreamRefused(
        Refusal(
            status,
            body=json.dumps({"error": error}).encode(),
            headers=headers if isinstance(headers, dict) else {},
            type=_text(says, "type"),
            code=_text(says, "code"),
            message="Because.",
            resets_at=1_900_000_000.5 if "resets_at" in says else None,
            plan_type=_text(says, "plan_type"),
        )
    )


def _text(says: dict[str, object], name: str) -> str | None:
    value = says.get(name)
    return value if isinstance(value, str) else None


def retry_after(told: Answer) -> int | None:
    value = told.headers.get("retry-after")
    return None if value is None else int(value)


def every_error() -> Iterator[GatewayError]:
    yield from (
        GatewayError("x"),
        ClientError("x"),
        InvalidBody("x"),
        Unauthorized("x"),
        Overloaded("x"),
        LedgerUnavailable("x"),
        Stopping("x"),
        NoUsableAccount("x"),
        AccountsLimited("x", resets_at=1_900_000_000),
        OwnerGone("x"),
        OwnerBusy("x"),
        ConnectFailed("x"),
        UpstreamLost("x"),
        UpstreamSilent("x"),
        LivenessExpired("x"),
    )
    for status in (400, 401, 403, 404, 422, 429, 500, 502, 503, 302):
        for code in (None, "server_is_overloaded", "usage_limit_reached", "previous_response_not_found", "odd"):
            yield refused(status, code=code)


@pytest.mark.parametrize("route", BOTH)
@pytest.mark.parametrize(
    ("error", "status", "code", "after"),
    [
        (Overloaded("x", code="gateway_full", retry_after=7), 503, "gateway_full", 7),
        (Overloaded("x", code="account_streams_busy", retry_after=60), 503, "account_streams_busy", 60),
        (LedgerUnavailable("x", retry_after=2), 503, "ledger_unavailable", 2),
        (Stopping("x", retry_after=2), 503, "gateway_stopping", 2),
        (InvalidBody("x", code="body_too_large"), 400, "body_too_large", None),
        (ClientError("x", param="model"), 400, "invalid_request", None),
        (Unauthorized("x"), 401, "invalid_api_key", None),
        (OwnerGone("x"), 400, "previous_response_not_found", None),
        (OwnerBusy("x"), 409, "response_owner_busy", 1),
    ],
)
def test_our_own_refusals_are_the_same_on_both_routes(
    error: GatewayError, status: int, code: str, after: int | None, route: Route
) -> None:
    told = answer(error, route)
    assert (told.status, told.code, retry_after(told)) == (status, code, after)
    assert not told.lost


def test_a_client_without_a_key_is_told_how_to_show_one() -> None:
    assert answer(Unauthorized("x"), CODEX).headers["www-authenticate"] == "Bearer"


def test_the_parameter_that_is_wrong_is_named() -> None:
    assert json.loads(document(answer(InvalidBody("x", param="input"), V1)))["error"]["param"] == "input"
    assert json.loads(document(answer(OwnerGone("x"), V1)))["error"]["param"] == "previous_response_id"


def test_a_busy_owner_is_a_503_on_a_websocket() -> None:
    told = json.loads(frame(answer(OwnerBusy("x"), CODEX)))
    assert (told["status"], told["headers"]["retry-after"]) == (503, "1")


def test_no_account_is_shown_at_once_by_the_codex_client_and_retried_by_others() -> None:
    codex, v1 = (answer(NoUsableAccount("The operator must add one."), route) for route in BOTH)
    assert (codex.status, codex.code, retry_after(codex)) == (400, "no_accounts", None)
    assert (v1.status, v1.code) == (503, "no_accounts")
    assert retry_after(v1)
    assert [json.loads(frame(told))["status"] for told in (codex, v1)] == [400, 400]
    assert "The operator must add one." in document(codex).decode()


@pytest.mark.parametrize("route", BOTH)
def test_accounts_at_their_limit_are_a_usage_limit_with_the_earliest_reset(route: Route) -> None:
    told = answer(AccountsLimited("x", resets_at=1_900_000_000, plan_type="plus"), route)
    error = json.loads(document(told))["error"]
    assert told.status == 429
    assert (error["type"], error["resets_at"], error["plan_type"]) == ("usage_limit_reached", 1_900_000_000, "plus")
    in_frame = json.loads(frame(told))
    assert (in_frame["status"], in_frame["error"]["type"]) == (429, "usage_limit_reached")


def test_a_usage_limit_inside_a_stream_gets_an_ordinary_code() -> None:
    event = failed(answer(AccountsLimited("x"), CODEX), None, 0)
    assert json.loads(event.data)["response"]["error"]["code"] == "account_limited"


@pytest.mark.parametrize(
    "error",
    [
        UpstreamLost("x"),
        UpstreamSilent("x"),
        UpstreamSilent("x", code="stream_idle_timeout"),
        LivenessExpired("x"),
        ConnectFailed("x"),
    ],
)
def test_an_upstream_that_was_lost_is_a_503_for_codex_and_a_502_for_others_with_its_own_code(
    error: GatewayError,
) -> None:
    codex, v1 = answer(error, CODEX), answer(error, V1)
    assert (codex.status, retry_after(codex)) == (503, 2)
    assert v1.status == 502
    assert codex.code == v1.code == error.code
    assert codex.lost == v1.lost == (not isinstance(error, ConnectFailed))


@pytest.mark.parametrize("route", BOTH)
@pytest.mark.parametrize("status", [401, 403])
def test_an_account_that_was_not_accepted_is_no_matter_of_the_clients_key(status: int, route: Route) -> None:
    told = answer(refused(status, code="token_invalid", message="Bad token sk-ada."), route)
    assert (told.status, told.code, retry_after(told)) == (503, "upstream_account_unavailable", 2)
    assert "token" not in document(told).decode()


@pytest.mark.parametrize("route", BOTH)
def test_a_usage_limit_of_the_upstream_keeps_its_type_and_reset(route: Route) -> None:
    headers = {"x-codex-primary-used-percent": "100", "set-cookie": "no"}
    error = refused(429, type="usage_limit_reached", resets_at=True, plan_type="plus", headers=headers)
    told = answer(error, route)
    body = json.loads(document(told))["error"]
    assert (told.status, body["type"], body["resets_at"], body["plan_type"]) == (
        429,
        "usage_limit_reached",
        1_900_000_000,
        "plus",
    )
    assert told.headers == {"x-codex-primary-used-percent": "100"}


@pytest.mark.parametrize("route", BOTH)
@pytest.mark.parametrize("code", LIMIT_TYPES)
def test_a_usage_limit_told_by_its_code_alone_gets_the_type_that_clients_know_it_by(code: str, route: Route) -> None:
    told = answer(refused(429, type="rate_limit_error", code=code), route)
    assert json.loads(document(told))["error"]["type"] == code
    assert retry_after(told) is None


@pytest.mark.parametrize("route", BOTH)
@pytest.mark.parametrize(("said", "after"), [({}, 2), ({"retry-after": "17"}, 17)])
def test_a_rate_limit_always_says_when_to_come_back(said: dict[str, str], after: int, route: Route) -> None:
    told = answer(refused(429, type="rate_limit_error", code="rate_limit_exceeded", headers=said), route)
    assert (told.status, told.code, retry_after(told)) == (429, "rate_limit_exceeded", after)
    assert json.loads(frame(told))["headers"]["retry-after"] == str(after)


@pytest.mark.parametrize("route", BOTH)
@pytest.mark.parametrize("status", [500, 502, 503, 529])
def test_an_upstream_in_trouble_is_a_503_that_says_when_to_come_back(status: int, route: Route) -> None:
    told = answer(refused(status, type="server_error"), route)
    assert (told.status, told.code, retry_after(told)) == (503, "upstream_busy", 2)


@pytest.mark.parametrize("route", BOTH)
@pytest.mark.parametrize("status", [400, 404, 422])
def test_any_other_refusal_passes_unchanged(status: int, route: Route) -> None:
    error = refused(status, type="invalid_request_error", code="odd_code", param="input", detail=[1, 2])
    told = answer(error, route)
    assert told.status == status
    assert document(told) == error.refusal.body.replace(b'{"error": ', b'{"error":')
    assert json.loads(frame(told))["error"] == json.loads(error.refusal.body)["error"]


def test_a_redirect_of_the_upstream_is_no_redirect_of_ours() -> None:
    assert [answer(refused(302), route).status for route in BOTH] == [503, 502]


@pytest.mark.parametrize("route", BOTH)
def test_no_answer_tells_the_codex_client_to_give_up_over_load(route: Route) -> None:
    for error in every_error():
        told = answer(error, route)
        for rendered in (document(told), frame(told), failed(told, None, 0).data):
            assert b"server_is_overloaded" not in rendered, error


def test_where_the_codex_client_would_give_up_or_hammer_it_is_told_when_to_come_back() -> None:
    for error in every_error():
        told = answer(error, CODEX)
        assert told.status not in (500, 502) or type(error) is GatewayError, error
        if told.status in NEEDS_RETRY_AFTER and told.type not in LIMIT_TYPES:
            assert retry_after(told), error


@pytest.mark.parametrize("route", BOTH)
def test_an_upstreams_own_401_or_403_never_reaches_a_client(route: Route) -> None:
    for error in every_error():
        if isinstance(error, UpstreamRefused):
            assert answer(error, route).status not in (401, 403)


@given(
    status=st.integers(300, 599),
    code=st.none() | st.text(max_size=20),
    type=st.none() | st.text(max_size=20),
    body=st.binary(max_size=50),
    route=st.sampled_from(BOTH),
)
def test_whatever_an_upstream_says_there_is_an_answer(
    status: int, code: str | None, type: str | None, body: bytes, route: Route
) -> None:
    told = answer(UpstreamRefused(Refusal(status, body=body, type=type, code=code)), route)
    assert 400 <= told.status <= 599
    assert json.loads(document(told))["error"]
    assert json.loads(frame(told))["type"] == "error"
