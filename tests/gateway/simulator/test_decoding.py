import gzip

import pytest

from gateway.simulator.decoding import decode_body, zstd
from gateway.simulator.refusal import Refused

BODY = b'{"input":"' + b"x" * 10_000 + b'"}'


def refused_status(raw: bytes, encoding: str, limit: int = 1_000_000) -> int:
    with pytest.raises(Refused) as refused:
        decode_body(raw, encoding, limit)
    return refused.value.refusal.status


def test_zstd_gzip_and_plain_bodies_come_out_as_they_were() -> None:
    assert decode_body(zstd.compress(BODY), "zstd") == BODY
    assert decode_body(gzip.compress(BODY), "GZIP ") == BODY
    assert decode_body(BODY, "") == BODY
    assert decode_body(BODY, "identity") == BODY


def compressed(encoding: str) -> bytes:
    return zstd.compress(BODY) if encoding == "zstd" else gzip.compress(BODY)


@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
def test_broken_and_cut_off_bodies_are_400(encoding: str) -> None:
    whole = compressed(encoding)

    assert refused_status(b"no " + whole, encoding) == 400
    assert refused_status(whole[:-5], encoding) == 400


def test_an_unknown_encoding_is_415() -> None:
    assert refused_status(BODY, "br") == 415


@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
def test_a_body_that_unpacks_beyond_the_limit_is_413(encoding: str) -> None:
    assert refused_status(compressed(encoding), encoding, limit=len(BODY) - 1) == 413
    assert decode_body(compressed(encoding), encoding, limit=len(BODY)) == BODY
