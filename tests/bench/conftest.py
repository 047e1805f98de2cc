"""The measured upstream in the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.bench.requests import Endpoint
from tests.bench.upstream import serve


@pytest.fixture
async def upstream() -> AsyncIterator[Endpoint]:
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.ensure_future(serve(0, port.set_result))
    yield Endpoint("127.0.0.1", await port, "/v1/responses")
    serving.cancel()
    await asyncio.wait({serving})
