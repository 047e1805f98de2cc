from __future__ import annotations

import json

from gateway.server.errors import ClientDisconnected, PortTaken, Refusal, reason_phrase


def test_a_refusal_is_a_json_error_that_closes_the_connection() -> None:
    head, _, body = Refusal(400, "some_code", 'say "why"').response().partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"HTTP/1.1 400 Bad Request",
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(body),
        b"Connection: close",
    ]
    error = {"message": 'say "why"', "type": "invalid_request_error", "code": "some_code", "param": None}
    assert json.loads(body) == {"error": error}


def test_a_refusal_from_500_on_is_a_server_error_and_may_carry_headers() -> None:
    response = Refusal(503, "c", "m", (("Retry-After", "1"),)).response()
    assert b"\r\nRetry-After: 1\r\n" in response
    assert b'"type": "server_error"' in response


def test_a_refusal_of_head_has_the_length_but_no_body() -> None:
    refusal = Refusal(400, "c", "m")
    assert refusal.response(with_body=False) + refusal.body() == refusal.response()


def test_a_client_that_left_is_an_os_error() -> None:
    assert issubclass(ClientDisconnected, OSError)
    assert not issubclass(PortTaken, OSError)


def test_a_status_nobody_knows_has_no_phrase() -> None:
    assert (reason_phrase(503), reason_phrase(599)) == ("Service Unavailable", "")
