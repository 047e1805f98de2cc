import msgspec
import pytest
from msgspec import Raw

from gateway.errors import UpstreamLost
from gateway.protocol.bound import fingerprint
from gateway.protocol.events import (
    MAX_MESSAGE,
    MAX_REFUSAL_BODY,
    Event,
    Kind,
    Terminal,
    Usage,
    error_object,
    has_sequence_number,
    item_of_done,
    join_output,
    kind_of,
    read_bond,
    read_created,
    read_error,
    read_event,
    read_metadata_headers,
    read_rate_limits,
    read_terminal,
    refusal_from_http,
    response_of_terminal,
)

NOW = 1_796_000_000.0
TERMINALS = ["response.completed", "response.failed", "response.incomplete", "response.cancelled", "response.done"]


def event(event_type: str, **members: object) -> Event:
    return read_event(msgspec.json.encode({"type": event_type, **members}))


@pytest.mark.parametrize(
    ("event_type", "kind"),
    [
        ("response.created", Kind.CREATED),
        *[(event_type, Kind.TERMINAL) for event_type in TERMINALS],
        ("codex.rate_limits", Kind.METADATA),
        ("codex.something_new", Kind.METADATA),
        ("response.metadata", Kind.METADATA),
        ("responsesapi.websocket_timing", Kind.METADATA),
        ("keepalive", Kind.METADATA),
        ("error", Kind.ERROR),
        ("response.output_item.done", Kind.ITEM),
        ("response.output_item.added", Kind.OTHER),
        ("response.in_progress", Kind.OTHER),
        ("response.output_text.delta", Kind.OTHER),
        ("response.completed.extra", Kind.OTHER),
        ("", Kind.OTHER),
    ],
)
def test_each_type_has_its_kind(event_type, kind):
    assert kind_of(event_type) is kind
    assert event(event_type).kind is kind


@pytest.mark.parametrize(
    "data",
    [
        b'{"type":"response.created"}',
        b' \r\n\t{ "type" :\n"response.created" , "x": 1}',
        b'{"x":{"type":"error"},"type":"response.created"}',
        b'{"x":"\\"type\\":\\"error\\"","type":"response.created"}',
        b'{"type":"response\\u002ecreated"}',
        b'{"\\u0074ype":"response.created"}',
    ],
)
def test_the_type_is_found_however_the_object_is_written(data):
    found = read_event(data, b"data: ...")
    assert (found.type, found.kind, found.data, found.raw) == ("response.created", Kind.CREATED, data, b"data: ...")


def test_a_type_beyond_ascii_is_kept():
    assert read_event('{"type":"réponse"}'.encode()).type == "réponse"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"{}",
        b"[]",
        b'"type"',
        b'{"type":7}',
        b'{"type":null}',
        b'{"type":"response.created',
        b'{"type":"\xff"}',
        b'{"x":1,"type":"error"',
        b'{"x":' + b"[" * 100_000,
    ],
)
def test_data_without_a_readable_type_is_an_untyped_event(data):
    found = read_event(data)
    assert (found.type, found.kind, found.data, found.raw) == ("", Kind.OTHER, data, b"")


def test_an_event_shows_its_type_and_size_but_not_its_content():
    assert repr(read_event(b'{"type":"error","x":"secret"}')) == "<Event error error, 29 bytes>"
    assert repr(read_event(b"secret")) == "<Event untyped other, 6 bytes>"


def test_a_sequence_number_is_seen():
    assert has_sequence_number(b'{"type":"response.created","sequence_number":0}')
    assert not has_sequence_number(b'{"type":"response.created","sequence":0}')


def test_a_terminal_event_tells_how_the_response_ended():
    response = {
        "id": "resp_1",
        "model": "gpt-5.5",
        "service_tier": "priority",
        "usage": {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 4},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": 16,
        },
    }
    assert read_terminal(event("response.completed", response=response)) == Terminal(
        type="response.completed",
        status="completed",
        response_id="resp_1",
        usage=Usage(input=10, cached=4, output=5, reasoning=2, total=16),
        service_tier="priority",
        model="gpt-5.5",
    )


def test_a_failed_response_tells_its_error():
    response = {"id": "resp_1", "error": {"code": "server_error", "message": "m" * (MAX_MESSAGE + 1)}}
    terminal = read_terminal(event("response.failed", response=response))
    assert (terminal.status, terminal.error_code) == ("failed", "server_error")
    assert terminal.error_message == "m" * MAX_MESSAGE


@pytest.mark.parametrize(
    ("event_type", "told", "status"),
    [
        ("response.completed", "failed", "completed"),
        ("response.failed", None, "failed"),
        ("response.incomplete", None, "incomplete"),
        ("response.cancelled", None, "cancelled"),
        ("response.done", "failed", "failed"),
        ("response.done", "cancelled", "cancelled"),
        ("response.done", "in_progress", "completed"),
        ("response.done", 7, "completed"),
        ("response.done", None, "completed"),
    ],
)
def test_the_status_comes_from_the_type_and_for_done_from_the_response(event_type, told, status):
    assert read_terminal(event(event_type, response={"status": told})).status == status


@pytest.mark.parametrize(
    "rest",
    [b"}", b"", b',"response":null}', b',"response":[]}', b',"response":{"id":7,"usage":"many","error":"bad"}}'],
)
def test_odd_members_of_a_terminal_event_read_as_nothing(rest):
    found = read_terminal(read_event(b'{"type":"response.failed"' + rest))
    assert found == Terminal("response.failed", "failed")


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, None),
        ([], None),
        ({}, Usage()),
        ({"input_tokens": 3, "output_tokens": 4}, Usage(input=3, output=4, total=7)),
        ({"input_tokens": 3, "output_tokens": 4, "total_tokens": 0}, Usage(input=3, output=4, total=0)),
        ({"input_tokens": "x", "input_tokens_details": 7, "output_tokens": -1}, Usage()),
    ],
)
def test_usage_keeps_explicit_zeros_and_missing_usage_is_not_zero(usage, expected):
    assert read_terminal(event("response.completed", response={"usage": usage})).usage == expected


def test_a_created_event_tells_the_id():
    assert read_created(event("response.created", response={"id": "resp_1"})) == "resp_1"


@pytest.mark.parametrize("response", [None, {}, {"id": None}, {"id": 7}])
def test_a_created_event_may_tell_no_id(response):
    assert read_created(event("response.created", response=response)) is None


@pytest.mark.parametrize("read", [read_terminal, read_created, response_of_terminal, lambda e: read_error(e, NOW)])
def test_reading_the_wrong_kind_of_event_is_a_mistake(read):
    with pytest.raises(ValueError, match=r"is needed, not <Event response\.in_progress"):
        read(event("response.in_progress"))


def test_the_response_of_a_terminal_event_keeps_its_bytes():
    data = b'{"type":"response.completed", "response": {"id" : "resp_1", "output":[ ]} }'
    assert bytes(response_of_terminal(read_event(data))) == b'{"id" : "resp_1", "output":[ ]}'


@pytest.mark.parametrize("rest", [b"}", b',"response":null}', b',"response":[]}', b""])
def test_a_terminal_event_without_a_response_object_is_a_lost_response(rest):
    with pytest.raises(UpstreamLost, match=r"response\.completed event that holds no response object"):
        response_of_terminal(read_event(b'{"type":"response.completed"' + rest))


def test_a_done_item_keeps_its_bytes():
    data = b'{"type":"response.output_item.done","item":{ "id":"a" },"output_index":0}'
    assert item_of_done(read_event(data)) == b'{ "id":"a" }'
    assert item_of_done(event("response.output_item.done")) == b""
    with pytest.raises(ValueError, match=r"response\.output_item\.done event is needed"):
        item_of_done(event("response.output_item.added", item={}))


@pytest.mark.parametrize("output", [b"", b',"output":[]', b',"output":null'])
def test_an_empty_output_is_filled_with_the_done_items_in_order(output):
    response = Raw(b'{"id" : 1' + output + b',"x":1.0e1}')
    joined = join_output(response, [b'{"a":1.0}', b"", b'{ "b":2}'])
    assert b'"output":[{"a":1.0},{ "b":2}]' in joined
    assert msgspec.json.decode(joined) == {"id": 1, "x": 10, "output": [{"a": 1}, {"b": 2}]}
    assert b'"x":1.0e1' in joined


def test_an_output_that_came_is_left_as_it_came():
    response = b'{"output": [{"a":1}]}'
    assert join_output(response, [b'{"b":2}']) == response
    assert join_output(b'{"output": []}', [b""]) == b'{"output": []}'


def test_an_error_event_becomes_a_refusal():
    frame = event(
        "error",
        status=429,
        error={
            "type": "usage_limit_reached",
            "code": None,
            "message": "limit",
            "plan_type": "plus",
            "resets_at": 1_796_000_100,
            "resets_in_seconds": 5,
        },
        headers={"X-Codex-Active-Limit": "codex", "retry-after": 7},
    )
    refusal = read_error(frame, NOW)
    assert (refusal.status, refusal.type, refusal.code) == (429, "usage_limit_reached", None)
    assert (refusal.message, refusal.plan_type, refusal.resets_at) == ("limit", "plus", 1_796_000_100)
    assert refusal.headers == {"x-codex-active-limit": "codex", "retry-after": "7"}
    assert refusal.body == frame.data


@pytest.mark.parametrize(
    ("members", "status"),
    [
        ({"status": 503}, 503),
        ({"status_code": 404}, 404),
        ({"status": 200, "status_code": 418}, 418),
        ({"status": "429"}, 429),
        ({"status": 200}, 500),
        ({"status": 10**30}, 500),
        ({}, 500),
        ({"error": {"code": "previous_response_not_found"}}, 400),
        ({"error": {"code": "websocket_connection_limit_reached"}}, 400),
        ({"error": {"type": "usage_limit_reached", "code": None}}, 429),
        ({"error": {"type": "invalid_request_error", "code": "server_is_overloaded"}}, 503),
        ({"code": "rate_limit_exceeded", "message": "m"}, 429),
    ],
)
def test_an_error_without_a_usable_status_gets_the_one_of_its_code(members, status):
    assert read_error(event("error", **members), NOW).status == status


def test_code_and_message_may_stand_beside_the_type_of_the_event():
    refusal = read_error(event("error", code="server_error", message="sorry", sequence_number=3), NOW)
    assert (refusal.type, refusal.code, refusal.message) == (None, "server_error", "sorry")


@pytest.mark.parametrize(
    ("error", "resets_at"),
    [
        ({"resets_at": 5}, 5),
        ({"resets_at": "5"}, 5),
        ({"resets_in_seconds": 30}, NOW + 30),
        ({"resets_in_seconds": 0}, NOW),
        ({"resets_at": 0, "resets_in_seconds": 30}, NOW + 30),
        ({"resets_at": None, "resets_in_seconds": -1}, None),
        ({"resets_at": "soon"}, None),
        ({}, None),
    ],
)
def test_the_reset_is_absolute_or_counted_from_now(error, resets_at):
    assert read_error(event("error", error={"x": 1, **error}), NOW).resets_at == resets_at


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        (b'{"error":{"code":"c","message":"m"}}', "c", "m"),
        (b'{"error":"invalid_grant"}', None, "invalid_grant"),
        (b'{"detail":"Unauthorized"}', None, "Unauthorized"),
        (b'{"detail":{"code":"deactivated_workspace"}}', "deactivated_workspace", ""),
        (b'{"error":null,"detail":"d"}', None, "d"),
        (b'{"code":"c","message":"m"}', "c", "m"),
        (b'{"error":{"code":429,"message":["m"]}}', None, ""),
        (b"<html>Just a moment</html>", None, ""),
        (b"\xff\x00", None, ""),
        (b"", None, ""),
        (b'{"error":' + b"[" * 50_000, None, ""),
    ],
)
def test_any_body_of_an_http_error_is_read_without_raising(body, code, message):
    refusal = refusal_from_http(502, {}, body, NOW)
    assert (refusal.status, refusal.code, refusal.message, refusal.body) == (502, code, message, body)


def test_an_http_refusal_has_lower_case_headers_and_a_bounded_body_and_message():
    body = msgspec.json.encode({"error": {"message": "m" * 5_000, "resets_in_seconds": 9}})
    refusal = refusal_from_http(429, {"Retry-After": "9", "X-Bad": "a\nb"}, body, NOW)
    assert refusal.headers == {"retry-after": "9"}
    assert refusal.message == "m" * MAX_MESSAGE
    assert refusal.resets_at == NOW + 9
    assert len(refusal_from_http(429, {}, b"x" * 2 * MAX_REFUSAL_BODY, NOW).body) == MAX_REFUSAL_BODY


def test_the_error_object_is_passed_on_as_it_stands():
    assert error_object(b'{"x":1,"error": {"code" : "c"}}') == b'{"code" : "c"}'
    for body in (b"", b"{}", b'{"error":null}', b'{"error":"text"}', b'{"error":{}}'):
        assert error_object(body) is None


def test_rate_limits_become_the_headers_that_say_the_same():
    limits = event(
        "codex.rate_limits",
        plan_type="plus",
        rate_limits={
            "primary": {"used_percent": 42.5, "window_minutes": 300, "reset_at": 1_796_000_000},
            "secondary": {"used_percent": 7, "window_minutes": 10080, "reset_at": None},
        },
        credits={"has_credits": True, "unlimited": False, "balance": "5"},
        metered_limit_name=None,
        limit_name=None,
    )
    assert read_rate_limits(limits) == {
        "x-codex-primary-used-percent": "42.5",
        "x-codex-primary-window-minutes": "300",
        "x-codex-primary-reset-at": "1796000000",
        "x-codex-secondary-used-percent": "7",
        "x-codex-secondary-window-minutes": "10080",
        "x-codex-credits-has-credits": "true",
        "x-codex-credits-unlimited": "false",
        "x-codex-credits-balance": "5",
    }


@pytest.mark.parametrize(
    ("names", "family"),
    [
        ({"metered_limit_name": "codex_bengalfox", "limit_name": "Fox"}, "codex-bengalfox"),
        ({"limit_name": "GPT-5.3 Codex\r\nx: y"}, "gpt-5-3-codex-x-y"),
        ({"metered_limit_name": ""}, "codex"),
        ({"metered_limit_name": "…"}, "codex"),
        ({"metered_limit_name": "a" * 100}, "a" * 64),
    ],
)
def test_the_name_of_the_limit_becomes_the_family_of_the_headers(names, family):
    headers = read_rate_limits(event("codex.rate_limits", rate_limits={"primary": {"used_percent": 1}}, **names))
    assert headers[f"x-{family}-primary-used-percent"] == "1"


def test_the_shown_name_of_the_limit_is_a_header_too():
    headers = read_rate_limits(event("codex.rate_limits", metered_limit_name="fox", limit_name="Fox"))
    assert headers == {"x-fox-limit-name": "Fox"}


def test_other_events_hold_no_rate_limits():
    assert read_rate_limits(event("response.metadata", rate_limits={"primary": {"used_percent": 1}})) == {}
    assert read_rate_limits(read_event(b'{"type":"codex.rate_limits",')) == {}


def test_metadata_events_carry_headers():
    metadata = event("response.metadata", headers={"X-Codex-Turn-State": "abc", "openai-model": "m", "n": None})
    assert read_metadata_headers(metadata) == {"x-codex-turn-state": "abc", "openai-model": "m"}
    assert read_metadata_headers(event("response.metadata")) == {}


@pytest.mark.parametrize(
    ("item", "bond"),
    [
        ({"type": "message", "content": []}, (False, None)),
        ({"type": "function_call"}, (False, None)),
        ({"type": "reasoning", "encrypted_content": None}, (False, None)),
        ({"type": "reasoning", "encrypted_content": "sealed"}, (True, fingerprint("sealed"))),
        ({"type": "compaction", "encrypted_content": "sealed"}, (True, fingerprint("sealed"))),
        ({"type": "web_search_call"}, (True, None)),
        ({"type": "something_new"}, (True, None)),
        (7, (False, None)),
    ],
)
def test_an_item_that_only_its_account_can_read_is_known_when_it_is_done(item: object, bond: tuple[bool, str | None]):
    assert read_bond(read_event(msgspec.json.encode({"type": "response.output_item.done", "item": item}))) == bond
