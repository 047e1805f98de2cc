"""What the running gateway keeps outside its memory, behind one small interface.

`DatabaseStore` is the real one; tests and simulations use a twin in memory that passes the same contract tests.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import ParamSpec, Protocol, TypeVar

from django.db import Error as AnyDatabaseError

from accounts import store as account_rows
from accounts.circuit import CircuitState
from accounts.quota import Quota
from accounts.registry import AccountSnapshot, StateChange
from accounts.states import What
from gateway import rows
from gateway.continuity import store as session_rows
from gateway.continuity.sessions import Session
from gateway.database import DatabaseThreads
from gateway.keys import KeySnapshot
from gateway.turns import ledger_store
from gateway.turns.ledger import LedgerError
from gateway.turns.record import TurnRecord

P = ParamSpec("P")
R = TypeVar("R")


CIRCUIT_EVENTS = {CircuitState.OPEN: What.CIRCUIT_OPENED, CircuitState.CLOSED: What.CIRCUIT_CLOSED}


class StoreError(Exception):
    """The store cannot be used now; what was to be read or written was not."""


class Store(Protocol):
    """Everything durable that a runtime needs. Methods raise `StoreError`, `write_turns` raises `LedgerError`."""

    async def register(self, replica: uuid.UUID) -> None:
        """This process exists from now on."""

    async def beat(self, replica: uuid.UUID) -> bool:
        """The process is alive; False when nobody knows it (any more)."""

    async def unregister(self, replica: uuid.UUID) -> None:
        """The process has ended in good order."""

    async def close_interrupted(self, dead_after: timedelta) -> int:
        """At a start: close the open turns of every process that is not alive; how many there were.

        A process is dead when its last beat is older than `dead_after`, or when the store can tell sooner.
        """

    async def close_dead(self, dead_after: timedelta) -> int:
        """Every few seconds: close the open turns of processes that have died since; how many there were."""

    async def leads(self, replica: uuid.UUID, dead_after: timedelta) -> bool:
        """Whether this process is the one that does the chores of all."""

    async def save_quotas(self, quotas: Mapping[int, Quota]) -> None:
        """Keep what upstreams told of the usage of accounts."""

    async def note_circuits(self, states: Mapping[int, CircuitState], turn: uuid.UUID) -> None:
        """Note that circuits of accounts have changed, and which turn did it."""

    async def load_keys(self) -> Sequence[KeySnapshot]:
        """All keys, off ones included."""

    async def mark_used(self, used: Mapping[int, datetime]) -> None:
        """Note when keys were last used."""

    async def mark_accounts_used(self, used: Mapping[int, float]) -> None:
        """Note when accounts were last used (unix seconds)."""

    async def load_accounts(self, known: Sequence[AccountSnapshot]) -> Sequence[AccountSnapshot] | None:
        """All accounts, or None when they are what `known` holds."""

    async def persist_state(self, change: StateChange) -> bool:
        """Write a change of state if its conditions still hold; whether they did."""

    async def find_response(self, client: int, response_id: str) -> int | None:
        """The account that stores a response of the client (the id of its key), None when the ledger knows none."""

    async def load_sessions(self, reader: uuid.UUID, since: float, soft_since: float) -> Sequence[Session]:
        """Sessions that others than `reader` wrote after `since` (unix seconds), the last used at the end.

        Soft ones count only after `soft_since`.
        """

    async def write_turns(self, replica: uuid.UUID, records: Sequence[TurnRecord]) -> None:
        """Insert or replace the rows of these turns and of the sessions they carry, all or none."""

    async def unapplied_migrations(self) -> int:
        """How many migrations the database lacks."""

    def close(self) -> None:
        """Release what the store holds; nothing may be asked of it afterwards."""


class DatabaseStore:
    """The store in Django's database, worked by threads of its own."""

    def __init__(self, token_keys: Sequence[str], default_streams: int) -> None:
        self._threads = DatabaseThreads()
        self._token_keys = token_keys
        self._default_streams = default_streams

    async def register(self, replica: uuid.UUID) -> None:
        await self._run(rows.register_replica, replica, datetime.now(UTC))

    async def beat(self, replica: uuid.UUID) -> bool:
        return await self._run(rows.beat, replica)

    async def unregister(self, replica: uuid.UUID) -> None:
        await self._run(rows.unregister_replica, replica)

    async def close_interrupted(self, dead_after: timedelta) -> int:
        return await self._run(ledger_store.close_interrupted, datetime.now(UTC), dead_after)

    async def close_dead(self, dead_after: timedelta) -> int:
        return await self._run(ledger_store.close_dead, datetime.now(UTC), dead_after)

    async def leads(self, replica: uuid.UUID, dead_after: timedelta) -> bool:
        return await self._run(rows.leads, replica, datetime.now(UTC), dead_after)

    async def save_quotas(self, quotas: Mapping[int, Quota]) -> None:
        for account_id, quota in quotas.items():
            await self._run(account_rows.save_quota, account_id, quota)

    async def note_circuits(self, states: Mapping[int, CircuitState], turn: uuid.UUID) -> None:
        for account_id, state in states.items():
            what = CIRCUIT_EVENTS.get(state)
            if what is not None:
                await self._run(account_rows.note_event, account_id, what, f"the circuit is {state}", turn)

    async def load_keys(self) -> Sequence[KeySnapshot]:
        return await self._run(rows.load_keys)

    async def mark_used(self, used: Mapping[int, datetime]) -> None:
        await self._run(rows.mark_used, used)

    async def mark_accounts_used(self, used: Mapping[int, float]) -> None:
        await self._run(account_rows.mark_used, used)

    async def load_accounts(self, known: Sequence[AccountSnapshot]) -> Sequence[AccountSnapshot] | None:
        return await self._run(account_rows.load_snapshots, self._token_keys, self._default_streams, known)

    async def persist_state(self, change: StateChange) -> bool:
        return await self._run(account_rows.change_state, change)

    async def find_response(self, client: int, response_id: str) -> int | None:
        return await self._run(ledger_store.find_response, client, response_id)

    async def load_sessions(self, reader: uuid.UUID, since: float, soft_since: float) -> Sequence[Session]:
        return await self._run(session_rows.load_sessions, reader, since, soft_since)

    async def write_turns(self, replica: uuid.UUID, records: Sequence[TurnRecord]) -> None:
        try:
            await self._run(ledger_store.write, replica, records)
        except StoreError as error:
            raise LedgerError(str(error)) from error

    async def unapplied_migrations(self) -> int:
        return await self._run(rows.unapplied_migrations)

    def close(self) -> None:
        self._threads.close()

    async def run(self, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run any work on the database in a thread of the store; its exceptions come through."""
        return await self._threads.run(work, *args, **kwargs)

    async def _run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await self._threads.run(work, *args, **kwargs)
        except AnyDatabaseError as error:
            raise StoreError(f"{type(error).__name__} in the database") from error
