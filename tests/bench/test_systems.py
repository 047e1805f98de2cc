from __future__ import annotations

import asyncio

import pytest

from tests.bench.answers import Shape
from tests.bench.cases import Case
from tests.bench.measure import measure
from tests.bench.memory import weigh
from tests.bench.requests import Endpoint
from tests.bench.systems import Peer, Protocol, Role, endpoint_at, running

SMALL = Case(Shape(events=20, interval=1), at_once=4, size=4096, turns=2)


def test_an_endpoint_is_read_from_a_url() -> None:
    assert endpoint_at("http://127.0.0.1:8045/v1/responses", "key") == Endpoint(
        "127.0.0.1", 8045, "/v1/responses", "key"
    )


def test_only_plain_http_can_be_measured() -> None:
    with pytest.raises(ValueError, match="give a URL like"):
        endpoint_at("https://example.com/v1")


def test_a_peer_is_measured_over_both_protocols() -> None:
    systems = Peer("http://127.0.0.1:9/v1/").systems()

    assert [each.protocol for each in systems] == list(Protocol)
    assert {each.endpoint.path for each in systems} == {"/v1/responses"}
    assert {each.role for each in systems} == {Role.PEER}


@pytest.mark.slow
def test_everything_starts_carries_turns_and_stops() -> None:
    said: list[str] = []
    with running([], 0, said.append) as stage:
        for system in stage.systems:
            sample = asyncio.run(measure(system, SMALL, stage.upstream_pid))
            assert (sample.turns, sample.events) == (8, 160)
            assert (sample.cpu is None) == (system.role is Role.DIRECT)
        weight = asyncio.run(weigh(stage.systems[-1], 8))

    assert [each.label for each in stage.systems] == [
        "SSE: upstream alone",
        "SSE: bare relay",
        "SSE: gateway, HTTP",
        "SSE: gateway, lanes",
        "WebSocket: upstream alone",
        "WebSocket: bare relay",
        "WebSocket: gateway",
    ]
    assert weight.rest > 20_000_000
    assert len(said) == 6
