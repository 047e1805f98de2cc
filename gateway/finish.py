"""Work that has to come to its end even when the task that does it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


async def finish_first(work: Coroutine[None, None, T]) -> T:
    """Run `work` to its end; a cancellation that comes meanwhile is raised afterwards.

    The work must be bounded by limits of its own, since nothing else ends it.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()  # retrieved, since the cancellation takes its place
        raise cancelled
    return task.result()
