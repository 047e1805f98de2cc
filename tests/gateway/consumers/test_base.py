"""What every consumer does with its connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gateway.consumers.base import GatewayConsumer, client_left
from gateway.errors import Unauthorized
from gateway.turns.request import Route
from tests.gateway.consumers.asgi import CODEX, Edge, edge


@pytest.fixture
async def made() -> AsyncIterator[Edge]:
    async with edge() as made:
        yield made


async def never(message: object) -> None:
    await asyncio.get_running_loop().create_future()


def consumer_of(made: Edge, buffered: Callable[[], int] | None = None, **headers: str) -> GatewayConsumer:
    consumer = GatewayConsumer(lambda: made.runtime.gate, Route.CODEX)
    extensions: dict[str, Any] = {} if buffered is None else {"pointsman.flow": {"buffered": buffered}}
    consumer.open_wire({**made.scope("http", CODEX, **headers), "extensions": extensions}, never)
    return consumer


async def test_headers_are_read_as_latin_1_so_that_every_byte_has_a_character(made: Edge):
    assert dict(consumer_of(made, x_title="caf\xe9").headers)["x-title"] == "caf\xe9"


async def test_a_valid_key_is_known_and_its_use_is_noted(made: Edge):
    assert consumer_of(made).authenticate().name == "tests"


@pytest.mark.parametrize("shown", ["", "Bearer x", "Basic eDp5"])
async def test_anything_else_is_refused(made: Edge, shown: str):
    with pytest.raises(Unauthorized, match="create_api_key"):
        consumer_of(made, authorization=shown).authenticate()


async def test_the_sizes_that_a_server_tells_are_used(made: Edge):
    asked = []

    def buffered() -> int:
        asked.append(1)
        return 0

    wire = consumer_of(made, buffered).wire
    sending = asyncio.ensure_future(wire.send({}))
    await asyncio.sleep(0)
    wire.check(wire.sent_at)
    assert asked
    sending.cancel()


async def test_work_without_a_turn_is_cancelled_when_the_client_leaves(made: Edge):
    work: asyncio.Task[None] = asyncio.ensure_future(never({}))
    consumer_of(made).stop(work, client_left())
    await asyncio.wait({work})
    assert work.cancelled()
