"""Keeps what the processes of the pool share of circuits: writes what has changed here, soon and one at a time."""

from __future__ import annotations

import asyncio

import structlog

from accounts.circuits import Circuits
from gateway.storage import Store, StoreError

log = structlog.get_logger("gateway.circuits")

# Seconds between two looks: with the registry's second, and the time it takes to write and to read, another process
# knows of a change within two. So an account under constant probe is not written more often, either.
PAUSE = 0.5


class CircuitKeeper:
    """Writes the changes of `circuits`; what others write is learned with the accounts."""

    def __init__(self, circuits: Circuits, store: Store) -> None:
        self._circuits = circuits
        self._store = store
        self._complained = False

    async def run(self) -> None:
        """Keep writing until cancelled. A store that fails is reported once; what it did not take is kept."""
        while True:
            await asyncio.sleep(PAUSE)
            if not self._circuits.has_unsaved:
                continue
            try:
                await self.flush()
                self._complained = False
            except StoreError as error:
                if not self._complained:
                    self._complained = True
                    log.error("circuits_not_saved", error=type(error).__name__)

    async def flush(self) -> None:
        """Write what has changed; raises `StoreError`, and then the rest waits for the next call."""
        changes = self._circuits.take_unsaved()
        while changes:
            try:
                if await self._store.save_circuit(changes[-1]):
                    self._circuits.saved(changes[-1])
            except BaseException:  # cancelled or failed, what was taken must not be lost
                for change in changes:
                    self._circuits.put_back(change)
                raise
            changes.pop()
