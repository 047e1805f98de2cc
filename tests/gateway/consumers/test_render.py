"""Answers as bytes, for each transport."""

from __future__ import annotations

import json

import pytest

from gateway.consumers.render import broken_off, document, failed, frame
from gateway.protocol.events import Kind, read_event
from gateway.turns.answers import USAGE_LIMIT, Answer

PLAIN = Answer(503, "server_error", "gateway_full", "Full.", headers={"retry-after": "3"}, extra={"resets_at": 5})
PASSED_ON = Answer(400, "invalid_request_error", "c", "m", error=b'{"code":"c",  "message":"as it came"}')


def test_a_document_holds_one_error_object_with_the_fields_that_clients_read():
    assert json.loads(document(PLAIN)) == {
        "error": {
            "message": "Full.",
            "type": "server_error",
            "code": "gateway_full",
            "param": None,
            "resets_at": 5,
        }
    }


def test_a_frame_says_the_same_with_its_status_and_headers():
    told = json.loads(frame(PLAIN))
    assert (told["type"], told["status"], told["headers"]) == ("error", 503, {"retry-after": "3"})
    assert (told["error"]["code"], told["error"]["resets_at"]) == ("gateway_full", 5)


def test_a_frame_may_have_a_status_of_its_own():
    assert json.loads(frame(Answer(409, "server_error", "c", "m", frame_status=503)))["status"] == 503


def test_the_upstreams_own_error_passes_byte_by_byte():
    assert document(PASSED_ON) == b'{"error":{"code":"c",  "message":"as it came"}}'
    assert (
        frame(PASSED_ON) == b'{"type":"error","status":400,"error":{"code":"c",  "message":"as it came"},"headers":{}}'
    )


def test_a_failed_event_is_terminal_and_names_the_response_if_it_has_a_name():
    event = failed(PLAIN, "resp_1", now=12.9)
    response = json.loads(event.data)["response"]
    assert event.kind is Kind.TERMINAL
    assert (response["id"], response["status"], response["created_at"]) == ("resp_1", "failed", 12)
    assert response["error"] == {"code": "gateway_full", "message": "Full."}
    assert json.loads(failed(PLAIN, None, 0).data)["response"]["id"] is None


def test_an_error_without_a_code_fails_with_its_type():
    assert json.loads(failed(Answer(500, "server_error", None, "m"), None, 0).data)["response"]["error"]["code"] == (
        "server_error"
    )


def test_a_usage_limit_in_a_stream_gets_an_ordinary_code_so_that_the_client_tries_again_and_meets_the_status():
    limited = Answer(429, USAGE_LIMIT, "usage_limit_reached", "Spent.")
    assert json.loads(failed(limited, None, 0).data)["response"]["error"]["code"] == "account_limited"


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (
            b'{"type":"error","error":{"type":"server_error","code":"c","message":"m"}}',
            {"type": "server_error", "code": "c", "message": "m"},
        ),
        (
            b'{"type":"error","code":"c","message":"m","param":null}',
            {"type": "server_error", "code": "c", "message": "m", "param": None},
        ),
    ],
    ids=["the backend's", "the platform's"],
)
def test_an_error_in_the_middle_of_a_response_is_a_502_with_what_the_upstream_said(
    event: bytes, error: dict[str, object]
):
    told = broken_off(read_event(event), now=0)
    assert told.status == 502
    assert json.loads(document(told))["error"] == error
