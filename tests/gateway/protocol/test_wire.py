import msgspec
import pytest

from gateway.protocol.events import Kind, read_error, read_event, read_terminal
from gateway.protocol.sse import encode_event
from gateway.protocol.wire import error_body, error_frame, failed_event


def test_an_error_body_has_the_four_members_of_the_api():
    assert msgspec.json.decode(error_body("m", "t", None)) == {
        "error": {"message": "m", "type": "t", "code": None, "param": None}
    }


def test_an_error_body_may_say_more():
    body = error_body("m", "usage_limit_reached", "c", "model", resets_at=5, plan_type="plus")
    assert body == (
        b'{"error":{"message":"m","type":"usage_limit_reached","code":"c","param":"model",'
        b'"resets_at":5,"plan_type":"plus"}}'
    )


def test_an_error_frame_has_the_shape_that_clients_read():
    frame = error_frame(
        429, "m", "usage_limit_reached", None, {"x-codex-active-limit": "codex"}, plan_type="plus", resets_at=5
    )
    assert frame == (
        b'{"type":"error","status":429,"error":{"type":"usage_limit_reached","code":null,"message":"m",'
        b'"plan_type":"plus","resets_at":5},"headers":{"x-codex-active-limit":"codex"}}'
    )


def test_an_error_frame_leaves_out_what_there_is_none_of():
    assert error_frame(400, "m", "t", "c", {}) == (
        b'{"type":"error","status":400,"error":{"type":"t","code":"c","message":"m"}}'
    )


def test_an_error_frame_is_read_as_what_was_written():
    refusal = read_error(read_event(error_frame(503, "m", "t", "c", {"retry-after": "2"}, "input")), 0.0)
    assert (refusal.status, refusal.type, refusal.code, refusal.message) == (503, "t", "c", "m")
    assert refusal.headers == {"retry-after": "2"}
    assert b'"param":"input"' in refusal.body


@pytest.mark.parametrize("status", [0, 101, 200, 299, 600])
def test_an_error_frame_with_a_status_that_clients_pass_over_is_refused(status):
    with pytest.raises(ValueError, match=f"needs an HTTP error status, not {status}"):
        error_frame(status, "m", "t", "c")


def test_a_failed_event_is_a_terminal_event_with_a_whole_response():
    event = failed_event("upstream_connection_lost", "lost", "resp_1", 1_796_000_000.9)
    assert event.kind is Kind.TERMINAL
    assert msgspec.json.decode(event.data) == {
        "type": "response.failed",
        "response": {
            "id": "resp_1",
            "object": "response",
            "created_at": 1_796_000_000,
            "status": "failed",
            "error": {"code": "upstream_connection_lost", "message": "lost"},
            "incomplete_details": None,
            "output": [],
        },
    }
    assert encode_event(event) == b"event: response.failed\ndata: " + event.data + b"\n\n"


def test_a_failed_event_makes_up_no_id():
    event = failed_event("c", "m", None, 0.0)
    assert b'"id":null' in event.data
    assert read_terminal(event).response_id is None
