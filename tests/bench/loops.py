"""The event loop of the measuring programs: uvloop where it is installed, so that they cost as little as they can."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


def run(main: Coroutine[None, None, T]) -> T:
    """Run `main` to its end, like `asyncio.run`."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    result: T = uvloop.run(main)
    return result
