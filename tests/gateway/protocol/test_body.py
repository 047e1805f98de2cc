import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway.errors import InvalidBody
from gateway.protocol.body import (
    MAX_VALUES,
    Bound,
    Reference,
    as_frame,
    as_http,
    parse_body,
    with_fields,
    without_item_ids,
    without_reasoning,
)
from gateway.protocol.bound import fingerprint

# As a client may write it: white space, escapes and number forms that an encoder would change.
SPELLED = b'{"model": "gpt-5.5", "input": [ {"type":"message", "role":"user",  "content":"\\u0041"} ], "top_p":1.0e0}'


def body_of(**members: object):
    return parse_body(msgspec.json.encode(members))


def code_of(raw: bytes) -> tuple[str, str | None]:
    with pytest.raises(InvalidBody) as caught:
        parse_body(raw)
    assert caught.value.message.endswith(".")
    return caught.value.code, caught.value.param


def test_the_facts_of_a_body_are_read():
    body = body_of(
        type="response.create",
        model="gpt-5.5",
        stream=True,
        store=False,
        background=True,
        generate=False,
        previous_response_id="resp_1",
        prompt_cache_key="thread",
        conversation={"id": "conv_1"},
        client_metadata={"x-codex-turn-state": "abc", "thread_id": "t"},
        input=[{"role": "user", "content": "hi"}],
    )
    assert (body.type, body.model, body.stream, body.store) == ("response.create", "gpt-5.5", True, False)
    assert (body.background, body.generate, body.conversation) == (True, False, True)
    assert (body.previous_response_id, body.prompt_cache_key, body.turn_state) == ("resp_1", "thread", "abc")
    assert body.input == [{"role": "user", "content": "hi"}]
    assert body.bound == {Bound.PREVIOUS_RESPONSE, Bound.CONVERSATION}
    assert body.is_bound
    assert body.is_delta


@pytest.mark.parametrize("value", [{}, None])
def test_absent_and_null_members_have_their_defaults(value):
    names = (
        "type model stream store background generate previous_response_id prompt_cache_key conversation "
        "client_metadata input prompt tools"
    )
    body = body_of() if value == {} else body_of(**dict.fromkeys(names.split()))
    assert (body.type, body.model, body.stream, body.store) == (None, None, False, None)
    assert (body.background, body.generate, body.conversation) == (False, True, False)
    assert (body.previous_response_id, body.prompt_cache_key, body.turn_state) == (None, None, None)
    assert body.input is None
    assert not body.is_bound
    assert not body.is_delta


def test_input_may_be_text():
    body = body_of(input="hi")
    assert (body.input, body.bound) == ("hi", frozenset())


def test_a_body_shows_its_size_and_what_binds_it_but_not_its_content():
    body = parse_body(b'{"model":"m","previous_response_id":"secret","input":"secret"}')
    assert repr(body) == "<Body 62 bytes, model 'm', bound by previous_response_id>"
    assert repr(parse_body(b"{}")) == "<Body 2 bytes, model '', bound by nothing>"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"a":1}x',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":01}',
        b"{'a':1}",
        b'{"a":"\x01"}',
        b'{"a":"\xff"}',
        b'{"a":"\xe2\x82"}',
        b'{"a\xff":1}',
        b'{"a":"\xed\xa0\x80"}',
        b"\xef\xbb\xbf{}",
        b"\x28\xb5\x2f\xfd",
        b'{"input":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"x":' + b'{"x":' * 100_000 + b"1" + b"}" * 100_001,
        b"[" * 100_000,
        b'{"input":"\\ud800"}',
        b'{"model":"a","model":"b"}',
        b'{"previous_response_id":"resp_1", "previous_response_id":null}',
    ],
)
def test_what_is_not_json_is_refused(raw):
    code, param = code_of(raw)
    assert (code, param) == (("invalid_body" if raw.startswith(b"[") else "invalid_json"), None)


def test_invalid_utf8_is_found_wherever_it_stands():
    filler = "é" * 600_000
    assert parse_body(f'{{"x":"{filler}"}}'.encode()).model is None
    assert code_of(f'{{"x":"{filler}'.encode() + b'\xc3"}') == ("invalid_json", None)


@pytest.mark.parametrize("raw", [b"[]", b"null", b"1", b'"text"', b"true"])
def test_a_body_that_is_no_object_is_refused(raw):
    assert code_of(raw) == ("invalid_body", None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", 5),
        ("stream", "yes"),
        ("store", 1),
        ("background", []),
        ("generate", "no"),
        ("previous_response_id", 7),
        ("prompt_cache_key", {}),
        ("client_metadata", []),
        ("input", {"type": "message"}),
        ("input", 7),
        ("type", 7),
    ],
)
def test_a_member_of_the_wrong_type_is_refused_by_name(name, value):
    assert code_of(msgspec.json.encode({name: value})) == ("invalid_body", name)


def test_a_turn_state_of_the_wrong_type_is_refused_and_an_empty_one_is_none():
    assert code_of(b'{"client_metadata":{"x-codex-turn-state":7}}') == ("invalid_body", "x-codex-turn-state")
    assert body_of(client_metadata={"x-codex-turn-state": ""}).turn_state is None


@pytest.mark.parametrize(("generate", "expected"), [(True, True), (False, False), (None, True)])
def test_a_request_generates_unless_it_says_that_it_does_not(generate, expected):
    assert body_of(generate=generate).generate is expected


def test_a_number_that_no_float_can_hold_is_refused_where_it_is_read():
    assert code_of(b'{"input":[1e999]}') == ("invalid_body", "input")
    assert parse_body(b'{"top_p":1e999}').fields["top_p"] == Raw(b"1e999")


def test_a_body_of_more_values_than_a_model_reads_is_refused_before_it_is_decoded():
    assert code_of(b'{"input":[' + b"0," * MAX_VALUES + b"0]}") == ("too_many_values", None)
    assert parse_body(b'{"input":"' + b",[{" * MAX_VALUES + b'"}').bound == frozenset()


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"previous_response_id": "resp_1"}, Bound.PREVIOUS_RESPONSE),
        ({"previous_response_id": ""}, Bound.PREVIOUS_RESPONSE),
        ({"conversation": "conv_1"}, Bound.CONVERSATION),
        ({"prompt": {"id": "pmpt_1"}}, Bound.STORED_PROMPT),
        ({"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]}, Bound.VECTOR_STORE),
        ({"input": [{"type": "something_new"}]}, Bound.UNKNOWN_ITEM),
        ({"input": [{"type": "function_call", "call_id": "c1"}]}, Bound.UNPAIRED_CALL),
        ({"something_new": {"files": [{"file_id": "file-1"}]}}, Bound.FILE),
        ({"container_id": "cntr_1"}, Bound.CONTAINER),
    ],
)
def test_a_body_is_bound_by_whatever_relies_on_one_account(members, reason):
    assert body_of(**members).bound == {reason}


@pytest.mark.parametrize(
    "members",
    [
        {"metadata": {"file_id": "mine"}},
        {"text": {"format": {"type": "json_schema", "schema": {"properties": {"file_id": {"type": "string"}}}}}},
        {"instructions": "file_id", "something_new": "file-1"},
        {"tools": [{"type": "function", "name": "f", "parameters": {"file_id": {"type": "string"}}}]},
        {"store": True, "background": True, "service_tier": "priority"},
    ],
)
def test_names_of_the_clients_own_bind_nothing(members):
    assert body_of(**members).bound == frozenset()


def test_a_delta_may_hold_the_output_of_a_call_in_the_response_it_continues():
    output = {"type": "function_call_output", "call_id": "c1", "output": "done"}
    assert body_of(previous_response_id="resp_1", input=[output]).bound == {Bound.PREVIOUS_RESPONSE}
    assert body_of(input=[output]).bound == {Bound.UNPAIRED_CALL}


def test_untouched_values_leave_with_their_bytes():
    edited = with_fields(parse_body(SPELLED), {"model": "gpt-6", "store": False})
    assert edited == (
        b'{"model":"gpt-6","input":[ {"type":"message", "role":"user",  "content":"\\u0041"} ],'
        b'"top_p":1.0e0,"store":false}'
    )


def test_a_raw_value_is_put_in_as_it_is_and_none_removes():
    body = parse_body(b'{"a":1,"b":2}')
    assert with_fields(body, {"a": None, "x": None, "b": Raw(b"null"), "c": Raw(b"1.50")}) == b'{"b":null,"c":1.50}'
    assert with_fields(body, {"a": None, "b": None}) == b"{}"
    assert with_fields(parse_body(b" {} "), {"a": {"b": [1]}}) == b'{"a":{"b":[1]}}'


names = st.text(max_size=6) | st.sampled_from(["model", "input", "type", "stream"])
strings = st.text(max_size=6)
changes = st.dictionaries(names, st.none() | strings | st.lists(st.integers(0, 9), max_size=3), max_size=4)


@given(st.dictionaries(names.filter(lambda name: name != "stream"), strings, max_size=5), changes)
def test_an_edited_body_equals_the_intended_object(members, changes):
    expected = {**members, **changes}
    edited = with_fields(parse_body(msgspec.json.encode(members)), changes)
    assert msgspec.json.decode(edited) == {name: value for name, value in expected.items() if value is not None}
    kept = [name for name in members if name not in changes]
    fields = parse_body(msgspec.json.encode(members)).fields
    assert all(msgspec.json.encode(name) + b":" + bytes(fields[name]) in edited for name in kept)


def test_a_frame_gets_its_type_first_and_loses_nothing():
    assert as_frame(parse_body(SPELLED)).startswith(b'{"type":"response.create","model":"gpt-5.5","input":[ {')
    assert as_frame(parse_body(b"{ }")) == b'{"type":"response.create"}'


def test_a_frame_that_has_its_type_is_not_touched():
    raw = b' {"stream": true, "type": "response.create"} '
    assert as_frame(parse_body(raw)) is raw


@pytest.mark.parametrize("other", [b"null", b'"response.cancel"'])
def test_a_frame_is_a_create_whatever_the_body_called_itself(other):
    assert as_frame(parse_body(b'{"a":1,"type":' + other + b"}")) == b'{"type":"response.create","a":1}'


def test_an_http_request_has_no_type_and_streams():
    assert as_http(parse_body(b'{"type":"response.create","model":"m"}')) == b'{"model":"m","stream":true}'
    assert as_http(parse_body(b'{"type":null,"stream":true}')) == b'{"stream":true}'
    assert as_http(parse_body(b'{"stream":false,"model":"m"}')) == b'{"stream":true,"model":"m"}'


def test_an_http_request_that_streams_is_not_touched():
    raw = b'{ "stream":true, "model":"m"}'
    assert as_http(parse_body(raw)) is raw


def test_a_moved_body_leaves_the_ids_of_its_items_behind():
    raw = (
        b'{"model":"m","input":[{"id":"msg_1","role":"user","content":[{"type":"input_text","id":"x","text":"\\u0041"}]},'
        b'{"type":"function_call","call_id":"c1", "id":"fc_1","name":"f","arguments":"{}"},'
        b'{"type":"function_call_output","call_id":"c1","output":1.0e0},'
        b'{"type":"item_reference","id":"msg_2"},{"id":"msg_3"},7]}'
    )
    assert without_item_ids(parse_body(raw)) == (
        b'{"model":"m","input":[{"role":"user","content":[{"type":"input_text","id":"x","text":"\\u0041"}]},'
        b'{"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},'
        b'{"type":"function_call_output","call_id":"c1","output":1.0e0},'
        b'{"type":"item_reference","id":"msg_2"},{"id":"msg_3"},7]}'
    )


@pytest.mark.parametrize("raw", [b'{"input":"hi", "id":1}', b"{ }", b'{"input":null}'])
def test_a_body_without_items_moves_as_it_is(raw):
    assert without_item_ids(parse_body(raw)) is raw


def at_depth(frames: int, call):
    return call() if frames == 0 else at_depth(frames - 1, call)


@pytest.mark.parametrize("read", [without_item_ids, lambda body: body.input])
def test_a_body_that_could_only_just_be_read_raises_nothing_but_its_own_error(read):
    raw = b'{"input":[{"role":"user","x":' + b"[" * 800 + b"]" * 800 + b"}]}"
    body = parse_body(raw)
    assert read(body)
    # Where the decoder has a stack of its own there is no such body, and nothing is raised.
    with contextlib.suppress(InvalidBody):
        at_depth(300, lambda: read(body))


def test_what_a_body_names_is_known_of_it():
    sealed = {"type": "reasoning", "encrypted_content": "sealed"}
    body = body_of(input=[sealed, {"role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]}])
    assert body.references == {
        Reference(Bound.ENCRYPTED_CONTENT, fingerprint("sealed")),
        Reference(Bound.FILE, "file_1"),
    }
    for conversation in ("conv_1", {"id": "conv_1"}):
        assert body_of(conversation=conversation).references == {Reference(Bound.CONVERSATION, "conv_1")}
    assert body_of(conversation=7, input=[{"type": "item_reference", "id": "x"}]).references == set()


def test_reasoning_is_taken_out_and_nothing_else_is_touched():
    one, two = ({"type": "reasoning", "summary": [], "encrypted_content": each} for each in ("one", "two"))
    open_ = {"type": "reasoning", "summary": []}
    body = body_of(model="m", input=[one, {"role": "user", "content": "hi"}, two, open_])
    text, dropped = without_reasoning(body)
    assert msgspec.json.decode(text) == {"model": "m", "input": [{"role": "user", "content": "hi"}]}
    assert dropped == {fingerprint("one"), fingerprint("two")}
    text, dropped = without_reasoning(body, {fingerprint("two"), "other"})
    assert msgspec.json.decode(text)["input"] == [one, {"role": "user", "content": "hi"}, open_]
    assert dropped == {fingerprint("two")}
    assert without_reasoning(body_of(input="hi")) == (body_of(input="hi").raw, frozenset())
