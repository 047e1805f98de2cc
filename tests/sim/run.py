"""Runs one world on a loop of its own, and buries it."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from random import Random
from typing import Any

import structlog

from tests.sim.loop import SimLoop
from tests.sim.options import Options, Result
from tests.sim.world import World


def run_world(options: Options, progress: Callable[[World], None] = lambda _: None) -> Result:
    """Run one world to its end, on a loop of its own."""
    loop = SimLoop(Random(f"{options.seed} loop"))
    holder: list[World] = []
    begun = time.process_time()

    async def live() -> Result:
        world = World(options, loop, progress)
        holder.append(world)
        await world.run()
        return world.result(time.process_time() - begun)

    logging = structlog.get_config()
    collecting = gc.isenabled()
    _log_to(lambda event: holder[0].logged(event) if holder else None)
    # The loop collects, at rounds that are the same in every run.
    gc.disable()
    asyncio.set_event_loop(loop)
    try:
        result = loop.run_until_complete(live())
        holder[0].bury()
    finally:
        loop.close()
        asyncio.set_event_loop(None)
        structlog.configure(**logging)
        if collecting:
            gc.enable()
    return result


def _log_to(tell: Callable[[dict[str, Any]], None]) -> None:
    """Give the gateway's log events to `tell` and to nobody else."""

    def take(logger: Any, method: str, event: Any) -> Any:
        tell(dict(event))
        raise structlog.DropEvent

    structlog.configure(processors=[take], cache_logger_on_first_use=False)
