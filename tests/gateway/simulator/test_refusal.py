import json

from gateway.simulator import refusal


def test_a_refusal_is_an_http_body_and_an_error_frame_with_the_same_error() -> None:
    refused = refusal.previous_not_found("resp_1")

    frame = json.loads(refused.frame())

    assert frame == {"type": "error", "status": 400, **json.loads(refused.body())}
    assert frame["error"]["code"] == "previous_response_not_found"
    assert frame["error"]["param"] == "previous_response_id"


def test_a_usage_limit_is_told_by_its_type_with_the_reset_in_body_and_headers() -> None:
    refused = refusal.usage_limit(1_796_000_000, "plus", now=1_795_999_000.5)

    frame = json.loads(refused.frame())

    assert frame["error"]["type"] == "usage_limit_reached"
    assert frame["error"]["code"] is None
    assert frame["error"]["resets_at"] == 1_796_000_000
    assert frame["error"]["resets_in_seconds"] == 1000
    assert frame["error"]["plan_type"] == "plus"
    assert frame["headers"]["x-codex-primary-reset-at"] == "1796000000"


def test_a_rate_limit_has_retry_after_only_when_given() -> None:
    assert refusal.rate_limit(2.0).headers == {"retry-after": "2"}
    assert refusal.rate_limit(None).headers == {}


def test_a_plain_status_has_the_type_of_its_class() -> None:
    assert refusal.plain_status(404).type == "invalid_request_error"
    assert refusal.plain_status(502).type == "server_error"
