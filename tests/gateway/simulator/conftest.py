from collections.abc import AsyncIterator

import pytest

from gateway.simulator import Simulator


@pytest.fixture
async def upstream() -> AsyncIterator[Simulator]:
    async with Simulator() as simulator:
        yield simulator
