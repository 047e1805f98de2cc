import gzip
import sys
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidBody
from gateway.protocol.encoding import MAX_CODINGS, MAX_MEMBERS, decode_content

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MIB = 1024 * 1024
TEXT = b'{"model":"gpt-5.5","input":"' + b"hello " * 200 + b'"}'


def bare_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return stream.compress(data) + stream.flush()


def fast_gzip(data: bytes) -> bytes:
    return gzip.compress(data, compresslevel=1, mtime=0)


ENCODERS = {"gzip": fast_gzip, "x-gzip": fast_gzip, "deflate": zlib.compress, "zstd": zstd.compress}
encoder_names = st.sampled_from(sorted(ENCODERS))


def code_of(raw: bytes, encodings: str | None, limit: int = MIB) -> str:
    with pytest.raises(InvalidBody) as caught:
        decode_content(raw, encodings, limit)
    assert caught.value.message.endswith(".")
    return caught.value.code


@pytest.mark.parametrize("encodings", [None, "", "identity", " Identity , identity,"])
def test_a_body_without_an_encoding_is_the_body(encodings):
    assert decode_content(TEXT, encodings, MIB) is TEXT


@given(st.binary(max_size=200), st.integers(0, 2000), st.lists(encoder_names, max_size=MAX_CODINGS))
def test_encodings_are_undone_in_the_order_they_were_applied(piece, times, codings):
    encoded = piece * times
    for coding in codings:
        encoded = ENCODERS[coding](encoded)
    assert decode_content(encoded, ", ".join(codings).upper(), MIB) == piece * times


def test_deflate_is_understood_with_and_without_its_zlib_header():
    assert decode_content(zlib.compress(TEXT), "deflate", MIB) == TEXT
    assert decode_content(bare_deflate(TEXT), "deflate", MIB) == TEXT


def test_output_that_waits_behind_the_last_byte_of_input_is_fetched():
    for size in range(65_536, 65_536 + 300):
        assert len(decode_content(bare_deflate(bytes(size)), "deflate", MIB)) == size


@pytest.mark.parametrize("encodings", ["br", "gzip, br", "gzip;q=1", "x" * 1000])
def test_an_unknown_encoding_is_refused(encodings):
    assert code_of(TEXT, encodings) == "unsupported_content_encoding"


def test_more_encodings_than_anybody_needs_are_refused():
    assert code_of(TEXT, ",".join(["gzip"] * (MAX_CODINGS + 1))) == "unsupported_content_encoding"


@pytest.mark.parametrize("coding", sorted(ENCODERS))
def test_a_body_cut_anywhere_is_refused(coding):
    encoded = ENCODERS[coding](TEXT)
    for end in range(len(encoded)):
        assert code_of(encoded[:end], coding) == "invalid_content_encoding"


@pytest.mark.parametrize("coding", sorted(ENCODERS))
@pytest.mark.parametrize("garbage", [b"\x00", b"garbage", b"{}", TEXT])
def test_anything_behind_the_body_is_refused(coding, garbage):
    assert code_of(ENCODERS[coding](TEXT) + garbage, coding) == "invalid_content_encoding"


@pytest.mark.parametrize("coding", sorted(ENCODERS))
def test_data_that_is_something_else_is_refused(coding):
    assert code_of(TEXT, coding) == "invalid_content_encoding"


def test_a_broken_checksum_is_refused():
    encoded = bytearray(fast_gzip(TEXT))
    encoded[-5] ^= 1
    assert code_of(bytes(encoded), "gzip") == "invalid_content_encoding"


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "zstd"])
def test_a_body_may_have_several_members_but_not_any_number(coding):
    member = ENCODERS[coding](b"a")
    assert decode_content(member * MAX_MEMBERS, coding, MIB) == b"a" * MAX_MEMBERS
    assert code_of(member * (MAX_MEMBERS + 1), coding) == "invalid_content_encoding"


def test_deflate_has_one_member():
    assert code_of(zlib.compress(b"a") * 2, "deflate") == "invalid_content_encoding"


@pytest.mark.parametrize("coding", [None, *sorted(ENCODERS)])
def test_a_body_of_just_the_limit_passes_and_one_byte_more_does_not(coding):
    encode = ENCODERS[coding] if coding else bytes
    assert len(decode_content(encode(b"a" * 100_000), coding, 100_000)) == 100_000
    assert code_of(encode(b"a" * 100_001), coding, 100_000) == "body_too_large"


def test_an_encoded_body_over_the_limit_is_refused_whatever_it_holds():
    assert code_of(fast_gzip(b"") * 10, "gzip", limit=100) == "body_too_large"


@pytest.mark.parametrize("coding", sorted(ENCODERS))
def test_a_bomb_is_refused_before_it_takes_the_memory(coding):
    bomb = ENCODERS[coding](bytes(64 * MIB))
    tracemalloc.start()
    try:
        assert code_of(bomb, coding, limit=2 * MIB) == "body_too_large"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB


def test_a_bomb_inside_a_bomb_is_refused():
    bomb = fast_gzip(fast_gzip(bytes(64 * MIB)))
    assert code_of(bomb, "gzip, gzip", limit=MIB) == "body_too_large"


def test_the_message_names_the_limit_that_an_operator_can_raise():
    with pytest.raises(InvalidBody, match=r"larger than 10 bytes.*GATEWAY_MAX_BODY_BYTES"):
        decode_content(b"a" * 11, None, 10)


def test_a_zstd_window_larger_than_http_allows_is_refused():
    def with_window(log: int) -> bytes:
        stream = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: log})
        return stream.compress(TEXT) + stream.flush()

    assert decode_content(with_window(23), "zstd", MIB) == TEXT
    assert code_of(with_window(24), "zstd") == "invalid_content_encoding"
