"""A request body, charged as it comes and bounded in every form."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest

from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.consumers.request_body import RequestBody, declared_size
from gateway.errors import InvalidBody, Overloaded, Stopping
from gateway.keys import KeySnapshot
from gateway.metering.meter import Meter
from gateway.turns.permits import Permit, Permits

LIMIT = 1000
KEY, OTHER = KeySnapshot(1, "tests", "", ""), KeySnapshot(2, "other", "", "")
RAW = b'{"model":"gpt-5.5","input":"hi"}'


@pytest.fixture
async def permits() -> Permits:
    clock = Clock()
    return Permits(Tunables(max_body_bytes=LIMIT, admission_bytes=2 * LIMIT), clock, Meter(clock))


@pytest.fixture
async def permit(permits: Permits) -> Permit:
    return permits.ask(KEY, 0)


@pytest.fixture
async def body() -> RequestBody:
    return RequestBody(LIMIT)


async def test_a_body_in_any_pieces_is_one_body(body: RequestBody, permit: Permit):
    reading = asyncio.ensure_future(body.read(permit, None))
    for byte in RAW:
        body.feed(bytes([byte]), more=True)
        await asyncio.sleep(0)
    assert not reading.done()
    body.feed(b"", more=False)
    assert await reading == RAW


async def test_a_body_that_is_given_up_is_waited_for_no_longer(body: RequestBody, permit: Permit):
    reading = asyncio.ensure_future(body.read(permit, None))
    body.feed(RAW[:5], more=True)
    await asyncio.sleep(0)
    body.abort(Stopping("The gateway is stopping."))
    with pytest.raises(Stopping):
        await reading


async def test_a_body_that_is_complete_is_not_given_up(body: RequestBody, permit: Permit):
    body.feed(RAW, more=False)
    body.abort(Stopping("The gateway is stopping."))
    assert await body.read(permit, None) == RAW


async def test_a_body_over_the_limit_is_refused_before_it_is_complete(body: RequestBody, permit: Permit):
    reading = asyncio.ensure_future(body.read(permit, None))
    body.feed(b"x" * LIMIT, more=True)
    await asyncio.sleep(0)
    assert not reading.done()
    body.feed(b"x", more=True)
    with pytest.raises(InvalidBody) as refused:
        await reading
    assert refused.value.code == "body_too_large"
    assert "GATEWAY_MAX_BODY_BYTES" in refused.value.message


async def test_what_comes_beyond_the_limit_is_not_kept(body: RequestBody, permit: Permit):
    for _ in range(100):
        body.feed(b"x" * LIMIT, more=True)
    with pytest.raises(InvalidBody):
        await body.read(permit, None)


async def test_a_body_that_cannot_be_held_now_is_refused_while_it_grows(permits: Permits, body: RequestBody):
    permits.ask(OTHER, 2 * LIMIT - 10)
    permit = permits.ask(KEY, 0)
    body.feed(b"x" * 5, more=True)
    reading = asyncio.ensure_future(body.read(permit, None))
    await asyncio.sleep(0)
    assert not reading.done()
    body.feed(b"x" * 10, more=True)
    with pytest.raises(Overloaded):
        await reading


async def test_an_encoded_body_is_decoded_once(body: RequestBody, permit: Permit):
    body.feed(gzip.compress(RAW), more=False)
    assert await body.read(permit, "gzip") == RAW


async def test_an_encoded_body_is_bounded_and_charged_as_it_unfolds(body: RequestBody, permits: Permits):
    permits.ask(OTHER, 2 * LIMIT - 400)
    text = json.dumps({"model": "gpt-5.5", "input": "a" * 500}).encode()
    body.feed(gzip.compress(text), more=False)
    with pytest.raises(Overloaded):
        await body.read(permits.ask(KEY, 0), "gzip")
    bomb = RequestBody(LIMIT)
    bomb.feed(gzip.compress(b"x" * 100 * LIMIT), more=False)
    with pytest.raises(InvalidBody) as refused:
        await bomb.read(permits.ask(KEY, 0), "gzip")
    assert refused.value.code == "body_too_large"


@pytest.mark.parametrize(
    ("headers", "size"),
    [({}, 0), ({"content-length": "17"}, 17), ({"content-length": str(LIMIT)}, LIMIT), ({"content-length": "-1"}, 0)]
    + [({"content-length": text}, 0) for text in ("", "1e3", "\u0663", "12,12", "+5")],
)
def test_the_declared_size_is_a_plain_number_or_nothing(headers: dict[str, str], size: int):
    assert declared_size(headers, LIMIT) == size


def test_a_body_declared_too_large_is_refused_before_it_is_read():
    with pytest.raises(InvalidBody) as refused:
        declared_size({"content-length": str(LIMIT + 1)}, LIMIT)
    assert refused.value.code == "body_too_large"
