"""What the running gateway keeps outside its memory, behind one small interface.

`DatabaseStore` is the real one; tests and simulations use a twin in memory that passes the same contract tests.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import ParamSpec, Protocol, TypeVar

from django.db import Error as AnyDatabaseError

from accounts import store as account_rows
from accounts.circuit_store import save_circuit
from accounts.circuits import CircuitChange
from accounts.quota import Quota
from accounts.registry import AccountSnapshot, StateChange
from gateway import rows
from gateway.continuity import lease_store
from gateway.continuity import store as session_rows
from gateway.continuity.leases import LeaseKey, Tenure
from gateway.continuity.rules import SessionKey
from gateway.continuity.sessions import Departure, Session
from gateway.database import DatabaseFile, DatabaseThreads, database_file
from gateway.keys import KeySnapshot
from gateway.metering import store as metering_rows
from gateway.metering.prices import Price
from gateway.metering.usage import NO_TALLY, Elsewhere, Tally
from gateway.replicas import store as replica_rows
from gateway.replicas.shares import NO_USE, Use
from gateway.replicas.store import Peer
from gateway.turns import ledger_store
from gateway.turns.ledger import Committed, LedgerError
from gateway.turns.names import Alias
from gateway.turns.record import TurnRecord
from gateway.watch import store as watch_rows
from gateway.watch.orders import Asked
from gateway.watch.snapshot import Snapshot

P = ParamSpec("P")
R = TypeVar("R")


class StoreError(Exception):
    """The store cannot be used now; what was to be read or written was not."""


class Store(Protocol):
    """Everything durable that a runtime needs. Methods raise `StoreError`, `write_turns` raises `LedgerError`."""

    async def register(self, replica: uuid.UUID, url: str = "") -> None:
        """This process exists from now on; other replicas reach it at `url`."""

    async def beat(self, replica: uuid.UUID, use: Use = NO_USE) -> bool | None:
        """The process is alive; whether that was said within `lease_ttl` of the last time.

        After a beat that was late the process owns no lease any more. None when nobody knows it (any more).
        """

    async def unregister(self, replica: uuid.UUID) -> None:
        """The process has ended in good order; its leases are free."""

    async def peers(self, replica: uuid.UUID) -> Sequence[Peer]:
        """The other replicas that are alive."""

    async def close_interrupted(self) -> int:
        """At a start: close the open turns of every process that is not alive; how many there were.

        A process is dead when its last beat is older than `lease_ttl`, or when the store can tell sooner.
        """

    async def close_dead(self) -> int:
        """Every second: end what processes that have died since left open or owned; how many turns there were."""

    async def leads(self, replica: uuid.UUID) -> bool:
        """Whether this process is the one that does the chores of all."""

    async def release_leases(self, replica: uuid.UUID, tenures: Sequence[Tenure]) -> None:
        """Set leases free that were not claimed since."""

    async def owner_of_session(self, key: LeaseKey) -> uuid.UUID | None:
        """The living replica that holds the lease of these lanes."""

    async def owner_of_response(self, client: int, response_id: str) -> uuid.UUID | None:
        """The living replica on whose lane a response of the client may be continued, as far as that is known."""

    async def save_quotas(self, quotas: Mapping[int, Quota]) -> None:
        """Keep what upstreams told of the usage of accounts."""

    async def save_circuit(self, change: CircuitChange) -> bool:
        """Keep the circuit unless somebody else has changed it first; whether it was kept."""

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

    async def find_maker(self, client: int, response_id: str) -> int | None:
        """The account that made a response of the client, whatever became of it; None when the ledger knows none."""

    async def load_sessions(self, reader: uuid.UUID, since: float, soft_since: float) -> Sequence[Session]:
        """Sessions that others than `reader` wrote after `since` (unix seconds), the last used at the end.

        Soft ones count only after `soft_since`.
        """

    async def load_aliases(self) -> Sequence[Alias]:
        """All names of models that are not an upstream's."""

    async def load_prices(self) -> Sequence[Price]:
        """What tokens cost."""

    async def load_usage(self, reader: uuid.UUID, keys: Collection[int], now: float) -> Elsewhere:
        """What others than `reader` have counted for `keys` in the windows of `now` (unix seconds)."""

    async def find_session(self, key: SessionKey) -> Session | None:
        """What is stored of a conversation, however long ago it was used."""

    async def depart(self, replica: uuid.UUID, departure: Departure) -> bool:
        """Let a conversation leave its account in one step, if the conditions of that hold; whether they did."""

    async def write_turns(
        self, replica: uuid.UUID, records: Sequence[TurnRecord], tally: Tally = NO_TALLY
    ) -> Committed:
        """Insert or replace the rows of these turns, of the sessions they carry and of `tally`, all or none.

        In the same commit the leases that turns need are claimed, and the anchors that they made published. Returns
        what came of that, and what other processes have counted for the keys that `tally` watches.
        """

    async def tell(self, replica: uuid.UUID, snapshot: Snapshot) -> None:
        """Keep what the process is doing, in place of what it was doing before."""

    async def take_orders(self, replica: uuid.UUID) -> Sequence[Asked]:
        """What operators ask of the process and is not done, the oldest first."""

    async def finish_order(self, order: int, said: str) -> None:
        """An order is done, and this came of it."""

    async def problem(self) -> str:
        """What makes the store unfit though it answers, in a few words; empty when nothing does."""

    async def unapplied_migrations(self) -> int:
        """How many migrations the database lacks."""

    def close(self) -> None:
        """Release what the store holds; nothing may be asked of it afterwards."""


class DatabaseStore:
    """The store in Django's database, worked by threads of its own."""

    def __init__(self, token_keys: Sequence[str], default_streams: int, lease_ttl: float) -> None:
        self._threads = DatabaseThreads()
        # Turns are written one batch after the other. In one thread, for each commit by another connection makes the
        # pages that a connection to SQLite keeps in memory worthless.
        self._writer = DatabaseThreads(1)
        self._file = DatabaseFile(database_file())
        self._token_keys = token_keys
        self._default_streams = default_streams
        self._lease_ttl = timedelta(seconds=lease_ttl)

    async def register(self, replica: uuid.UUID, url: str = "") -> None:
        await self._run(replica_rows.register, replica, url)

    async def beat(self, replica: uuid.UUID, use: Use = NO_USE) -> bool | None:
        return await self._run(replica_rows.beat, replica, use, self._lease_ttl)

    async def unregister(self, replica: uuid.UUID) -> None:
        await self._run(replica_rows.unregister, replica)

    async def peers(self, replica: uuid.UUID) -> Sequence[Peer]:
        return await self._run(replica_rows.peers, replica, self._lease_ttl)

    async def close_interrupted(self) -> int:
        return await self._run(ledger_store.close_interrupted, self._lease_ttl)

    async def close_dead(self) -> int:
        return await self._run(ledger_store.close_dead, self._lease_ttl)

    async def leads(self, replica: uuid.UUID) -> bool:
        return await self._run(replica_rows.leads, replica, self._lease_ttl)

    async def release_leases(self, replica: uuid.UUID, tenures: Sequence[Tenure]) -> None:
        await self._run(lease_store.release, replica, tenures)

    async def owner_of_session(self, key: LeaseKey) -> uuid.UUID | None:
        return await self._run(lease_store.owner_of_session, key, self._lease_ttl)

    async def owner_of_response(self, client: int, response_id: str) -> uuid.UUID | None:
        return await self._run(lease_store.owner_of_response, client, response_id, self._lease_ttl)

    async def save_quotas(self, quotas: Mapping[int, Quota]) -> None:
        for account_id, quota in quotas.items():
            await self._run(account_rows.save_quota, account_id, quota)

    async def save_circuit(self, change: CircuitChange) -> bool:
        return await self._run(save_circuit, change)

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

    async def find_maker(self, client: int, response_id: str) -> int | None:
        return await self._run(ledger_store.find_maker, client, response_id)

    async def load_sessions(self, reader: uuid.UUID, since: float, soft_since: float) -> Sequence[Session]:
        return await self._run(session_rows.load_sessions, reader, since, soft_since)

    async def load_aliases(self) -> Sequence[Alias]:
        return await self._run(rows.load_aliases)

    async def load_prices(self) -> Sequence[Price]:
        return await self._run(metering_rows.load_prices)

    async def load_usage(self, reader: uuid.UUID, keys: Collection[int], now: float) -> Elsewhere:
        return await self._run(metering_rows.read_usage, reader, keys, now)

    async def find_session(self, key: SessionKey) -> Session | None:
        return await self._run(session_rows.find_session, key)

    async def depart(self, replica: uuid.UUID, departure: Departure) -> bool:
        return await self._run(session_rows.depart, replica, departure)

    async def write_turns(
        self, replica: uuid.UUID, records: Sequence[TurnRecord], tally: Tally = NO_TALLY
    ) -> Committed:
        try:
            return await self._writer.run(ledger_store.write, replica, self._lease_ttl, records, tally)
        except AnyDatabaseError as error:
            raise LedgerError(f"{type(error).__name__} in the database") from error

    async def tell(self, replica: uuid.UUID, snapshot: Snapshot) -> None:
        await self._run(watch_rows.tell, replica, snapshot, datetime.now(UTC))

    async def take_orders(self, replica: uuid.UUID) -> Sequence[Asked]:
        return await self._run(watch_rows.take_orders, replica)

    async def finish_order(self, order: int, said: str) -> None:
        await self._run(watch_rows.finish_order, order, said, datetime.now(UTC))

    async def problem(self) -> str:
        return await self._run(self._file.problem)

    async def unapplied_migrations(self) -> int:
        return await self._run(rows.unapplied_migrations)

    def close(self) -> None:
        self._threads.close()
        self._writer.close()

    async def run(self, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run any work on the database in a thread of the store; its exceptions come through."""
        return await self._threads.run(work, *args, **kwargs)

    async def _run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await self._threads.run(work, *args, **kwargs)
        except AnyDatabaseError as error:
            raise StoreError(f"{type(error).__name__} in the database") from error
