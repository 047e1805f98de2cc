import pytest
from msgspec import Raw

from gateway.protocol.headers import (
    MAX_HEADER_VALUE,
    MAX_HEADERS,
    clean_headers,
    header_text,
    headers_in,
)


def test_names_are_lower_case_and_values_are_text():
    text = Raw(b'{"X-Codex-Turn-State":"abc","Retry-After":40,"x-share":42.50,"x-flag":true}')
    assert headers_in(text) == {
        "x-codex-turn-state": "abc",
        "retry-after": "40",
        "x-share": "42.50",
        "x-flag": "true",
    }


@pytest.mark.parametrize("text", [b"null", b"[]", b"{}", b'{"a":'])
def test_a_value_that_is_no_header_has_no_text(text):
    assert header_text(Raw(text)) is None


def test_a_missing_object_has_no_headers():
    assert header_text(None) is None
    assert headers_in(None) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-a", "b\r\nset-cookie: c"),
        ("x-a", "b\n"),
        ("x-a", "b\x00"),
        ("x-a", "ünicode"),
        ("x-a", None),
        ("x-a", "b" * (MAX_HEADER_VALUE + 1)),
        ("x a", "b"),
        ("x-a\n", "b"),
        ("", "b"),
        ("x" * 257, "b"),
    ],
)
def test_what_cannot_stand_in_a_header_is_dropped(name, value):
    assert clean_headers([(name, value), ("x-good", "\tyes ~")]) == {"x-good": "\tyes ~"}


def test_the_number_of_headers_is_bounded():
    headers = clean_headers((f"x-{number}", "v") for number in range(10 * MAX_HEADERS))
    assert len(headers) == MAX_HEADERS
