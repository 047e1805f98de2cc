import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway.protocol.members import (
    count_of,
    has_more_values,
    has_repeated_name,
    join_members,
    members_of,
    number_of,
    split_members,
    text_of,
    value_of,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=6), json_values, max_size=5)


@given(objects)
def test_split_and_joined_members_are_the_same_object(value):
    text = msgspec.json.encode(value)
    assert join_members(split_members(text)) == text


def test_values_keep_their_bytes_whatever_their_spelling():
    text = b'{"a": [1,  2] , "b":"\\u0041", "c":1.0e1}'
    assert join_members(split_members(text)) == b'{"a":[1,  2],"b":"\\u0041","c":1.0e1}'


@pytest.mark.parametrize("text", [b"[1]", b"null", b"1", b'"a"'])
def test_splitting_what_is_not_an_object_raises_a_validation_error(text):
    with pytest.raises(msgspec.ValidationError):
        split_members(text)


@given(objects, st.sampled_from([b"", b" ", b"\n\t "]))
def test_an_object_without_repeated_names_is_told_apart_in_any_layout(value, space):
    members = split_members(msgspec.json.encode(value))
    pairs = [space + msgspec.json.encode(name) + space + b":" + bytes(raw) for name, raw in members.items()]
    text = space + b"{" + (space + b",").join(pairs) + space + b"}" + space
    assert not has_repeated_name(text, split_members(text))


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"a":1}',
        b'{"a":1,"a":2}',
        b'{"a":12,"a":1}',
        b'{"a":1,"a":12}',
        b'{"b":{},"a":1,"c":[], "a":{"a":1}}',
        b'{"a":1,"\\u0061":1}',
        b'{ "a" : "x" , "a" : "y" }',
        b'{"a\\"b":1,"a\\"b":2}',
        b'{"a":{"q":1,"b":2},"a":"1234","b":3}',
    ],
)
def test_a_repeated_name_is_found(text):
    assert has_repeated_name(text, split_members(text))


@pytest.mark.parametrize("text", [b"{}", b"{ }", b'{"\\u0061":1}', b'{"a\\"b\\\\": 1}', b'{"a":{"b":1,"b":2}}'])
def test_an_unusual_name_or_a_repetition_further_down_is_none(text):
    assert not has_repeated_name(text, split_members(text))


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (b"[" + b"0," * 9 + b"0]", False),
        (b"[" + b"0," * 10 + b"0]", True),
        (b"[" + b"[]," * 4 + b"0]", False),
        (b"[" + b"[]," * 5 + b"0]", True),
        (b'{"a":"' + b",[{" * 50 + b'"}', False),
        (b'["' + b",[{" * 50 + b'","a","a","a","a","a","a"]', False),
        (b'{"a":"\\"' + b",[{" * 50 + b'\\\\"}', False),
        (b'{"a":"\\"","b":[' + b"{}," * 50 + b"{}]}", True),
    ],
)
def test_values_are_counted_outside_of_strings_only(text, more):
    msgspec.json.decode(text)
    assert has_more_values(text, 10) is more


@pytest.mark.parametrize("text", [None, b"", b"[]", b"{", b'"a"', b'{"a":' + b"[" * 100_000 + b"}"])
def test_members_of_anything_but_an_object_are_none_at_all(text):
    assert members_of(text) == {}


@pytest.mark.parametrize(("text", "value"), [(b"[1,null]", [1, None]), (b"1e999", None), (b"null", None)])
def test_a_value_is_decoded_or_counts_as_missing(text, value):
    assert value_of(Raw(text)) == value
    assert value_of(None) is None


@pytest.mark.parametrize(("text", "value"), [(b'"a"', "a"), (b'""', ""), (b"1", None), (b"[]", None)])
def test_only_a_string_is_text(text, value):
    assert text_of(Raw(text)) == value
    assert text_of(None) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"0", 0),
        (b"-1.5", -1.5),
        (b'"1796000000"', 1796000000),
        (b'"soon"', None),
        (b'"nan"', None),
        (b'"inf"', None),
        (b"true", None),
        (b"null", None),
        (b"{}", None),
        (b"1" + b"0" * 400, None),
    ],
)
def test_a_number_is_finite_and_may_be_written_as_a_string(text, number):
    assert number_of(Raw(text)) == number


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (b"0", 0),
        (b"7", 7),
        (b"7.0", 7),
        (b"9007199254740992", 2**53),
        (b"9007199254740994", 0),
        (b"7.5", 0),
        (b"-7", 0),
        (b"null", 0),
    ],
)
def test_a_count_is_whole_and_not_negative_and_fits_a_column(text, count):
    assert count_of(Raw(text)) == count
