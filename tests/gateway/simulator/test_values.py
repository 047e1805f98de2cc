import pytest

from gateway.simulator.values import decode_object, encode, objects, text


def test_characters_outside_ascii_and_line_separators_stay_as_they_are() -> None:
    assert encode({"text": "é\u2028\x85"}) == '{"text":"é\u2028\x85"}'.encode()


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b'"text"', b"\xff"])
def test_what_is_no_json_object_is_named_as_such(raw: bytes) -> None:
    with pytest.raises(ValueError, match="not"):
        decode_object(raw)


def test_narrowing_drops_what_has_another_type() -> None:
    assert text(7) == ""
    assert objects([{"a": 1}, "b", None]) == [{"a": 1}]
    assert objects("text") == []
