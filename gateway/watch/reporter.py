"""One process tells what it is doing, and does what operators ask of it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from gateway.storage import StoreError
from gateway.upstream.pool import LanePool
from gateway.watch.orders import RETIRE_LANE, Asked
from gateway.watch.snapshot import Snapshot

log = structlog.get_logger("gateway.watch")

# Seconds between two looks at the orders; every other time a snapshot is written, if it differs from the last one.
PAUSE = 1.0
TELL_EVERY = 2


class Board(Protocol):
    """Where snapshots go and orders come from; the runtime's store is one."""

    async def tell(self, replica: uuid.UUID, snapshot: Snapshot) -> None:
        """Keep the snapshot in place of the one before; raises `StoreError`."""

    async def take_orders(self, replica: uuid.UUID) -> Sequence[Asked]:
        """What is asked of the replica and not done; raises `StoreError`."""

    async def finish_order(self, order: int, said: str) -> None:
        """The order is done, and this came of it; raises `StoreError`."""


class Reporter:
    """Runs beside the traffic and touches nothing of it between two looks."""

    def __init__(self, replica: uuid.UUID, board: Board, pool: LanePool, take: Callable[[], Snapshot]) -> None:
        self._replica = replica
        self._board = board
        self._pool = pool
        self._take = take
        self._told: Snapshot | None = None

    async def run(self) -> None:
        """Tell and obey until cancelled. A store that fails is tried again; what it missed is told then."""
        tick = 0
        while True:
            await asyncio.sleep(PAUSE)
            tick += 1
            try:
                for order in await self._board.take_orders(self._replica):
                    await self._board.finish_order(order.id, await self._obey(order))
                if tick % TELL_EVERY == 0:
                    await self._tell()
            except StoreError as error:
                log.warning("not_told", error=type(error).__name__)

    async def _tell(self) -> None:
        snapshot = self._take()
        if snapshot != self._told:
            await self._board.tell(self._replica, snapshot)
            self._told = snapshot

    async def _obey(self, order: Asked) -> str:
        if order.what != RETIRE_LANE:
            return f"This version of the gateway does not know {order.what}."
        retired = await self._pool.retire(order.lane)
        return "The lane is closed, or will be when its response ends." if retired else "There is no such open lane."
