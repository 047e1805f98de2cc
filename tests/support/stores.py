"""The two stores, furnished and read alike, so that one set of tests can hold both to the same contract."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, Protocol, TypeVar

from cryptography.fernet import Fernet

from accounts.credentials import OpenAICredentials, seal
from accounts.models import Account
from accounts.registry import AccountSnapshot
from gateway.database import DatabaseThreads
from gateway.keys import KeySnapshot, new_key
from gateway.models import ApiKey, Replica, Turn
from gateway.storage import DatabaseStore, Store
from tests.support.inprocess import account
from tests.support.memory import MemoryStore

P = ParamSpec("P")
R = TypeVar("R")

LEASE_TTL = 30.0
KEYS = [Fernet.generate_key().decode()]
BASE_URL = "https://api.openai.com/v1"

Row = dict[str, Any]


class Furnished(Protocol):
    """A store, and the operator's hands in it."""

    store: Store

    async def add_key(self, name: str, **changes: Any) -> KeySnapshot: ...

    async def add_account(self, name: str, priority: int) -> AccountSnapshot: ...

    async def remove_account(self, account: AccountSnapshot) -> None: ...

    async def turns(self) -> dict[uuid.UUID, Row]: ...

    async def silence(self, replica: uuid.UUID, seconds: float = LEASE_TTL) -> None:
        """Let it be so long since the replica was heard of."""

    def close(self) -> None: ...


class FurnishedMemory:
    """The twin in memory."""

    def __init__(self) -> None:
        self.store = MemoryStore()

    async def add_key(self, name: str, **changes: Any) -> KeySnapshot:
        made = new_key()
        key = KeySnapshot(len(self.store.keys) + 1, name, made.lookup, made.digest, **changes)
        self.store.keys.append(key)
        return key

    async def add_account(self, name: str, priority: int) -> AccountSnapshot:
        number = len(self.store.accounts) + 1
        self.store.accounts[number] = account(number, name, BASE_URL, priority=priority)
        return self.store.accounts[number]

    async def remove_account(self, account: AccountSnapshot) -> None:
        del self.store.accounts[account.id]

    async def turns(self) -> dict[uuid.UUID, Row]:
        return {number: dict(row) for number, row in self.store.turns.items()}

    async def silence(self, replica: uuid.UUID, seconds: float = LEASE_TTL) -> None:
        self.store.beats[replica] = self.store.now() - timedelta(seconds=seconds)

    def close(self) -> None:
        self.store.close()


class FurnishedDatabase:
    """Django's database, whichever the settings name. Nothing here runs in the test's own thread."""

    def __init__(self) -> None:
        self.store = DatabaseStore(KEYS, default_streams=8, lease_ttl=LEASE_TTL)
        self._threads = DatabaseThreads(1)

    async def run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `work` in a thread that may use the database."""
        return await self._threads.run(work, *args, **kwargs)

    async def add_key(self, name: str, **changes: Any) -> KeySnapshot:
        made = new_key()
        key = KeySnapshot(0, name, made.lookup, made.digest, **changes)
        limits = {f"{limit.unit}_per_{limit.span}": limit.most for limit in key.limits.windows}
        row = await self.run(
            ApiKey.objects.create,
            name=name,
            lookup=made.lookup,
            digest=made.digest,
            enabled=key.enabled,
            allowed_accounts=sorted(key.accounts or ()),
            allowed_models=list(key.models),
            concurrent_turns=key.limits.turns,
            **limits,
        )
        return replace(key, id=row.id)

    async def add_account(self, name: str, priority: int) -> AccountSnapshot:
        credentials = OpenAICredentials(f"sim-{name}")
        row = await self.run(
            Account.objects.create,
            name=name,
            kind="openai",
            base_url=BASE_URL,
            priority=priority,
            credentials=seal(credentials, KEYS),
        )
        return replace(account(row.id, name, BASE_URL, priority=priority), kind=credentials.kind)

    async def remove_account(self, account: AccountSnapshot) -> None:
        await self.run(Account.objects.filter(id=account.id).delete)

    async def turns(self) -> dict[uuid.UUID, Row]:
        rows = await self.run(lambda: list(Turn.objects.values()))
        return {row["id"]: row for row in rows}

    async def silence(self, replica: uuid.UUID, seconds: float = LEASE_TTL) -> None:
        rows = Replica.objects.filter(id=replica)
        # SQLite's clock has whole milliseconds, and may be one behind this one.
        since = timedelta(seconds=seconds, milliseconds=1)
        await self.run(rows.update, heartbeat_at=datetime.now(UTC) - since)

    def close(self) -> None:
        self.store.close()
        self._threads.close()
