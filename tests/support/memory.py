"""The store's twin in memory: the same interface, the same rules, no database."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from accounts.registry import AccountSnapshot, StateChange
from gateway.continuity.rules import SessionKey, Strength
from gateway.continuity.sessions import Session
from gateway.keys import KeySnapshot
from gateway.storage import StoreError
from gateway.turns.ledger import LedgerError
from gateway.turns.ledger_store import row
from gateway.turns.record import TurnRecord


@dataclass
class MemoryStore:
    """Everything a runtime keeps, as plain attributes. With `broken` set every call fails, as on a lost database."""

    keys: list[KeySnapshot] = field(default_factory=list)
    accounts: dict[int, AccountSnapshot] = field(default_factory=dict)
    turns: dict[uuid.UUID, dict[str, Any]] = field(default_factory=dict)
    writes: list[list[tuple[uuid.UUID, str]]] = field(default_factory=list)
    replicas: dict[uuid.UUID, bool] = field(default_factory=dict)
    sessions: dict[SessionKey, Session] = field(default_factory=dict)
    broken: bool = False

    def _check(self) -> None:
        if self.broken:
            raise StoreError("the store is broken on purpose")

    async def register(self, replica: uuid.UUID) -> None:
        self._check()
        self.replicas[replica] = True

    async def beat(self, replica: uuid.UUID) -> bool:
        self._check()
        return replica in self.replicas

    async def unregister(self, replica: uuid.UUID) -> None:
        self._check()
        self.replicas[replica] = False

    async def close_interrupted(self, dead_after: timedelta) -> int:
        self._check()
        open_turns = [turn for turn in self.turns.values() if not turn["outcome"]]
        for turn in open_turns:
            turn["outcome"] = "interrupted"
        return len(open_turns)

    async def load_keys(self) -> Sequence[KeySnapshot]:
        self._check()
        return tuple(self.keys)

    async def mark_used(self, used: Mapping[int, datetime]) -> None:
        self._check()

    async def load_accounts(self, known: Sequence[AccountSnapshot]) -> Sequence[AccountSnapshot] | None:
        self._check()
        accounts = tuple(self.accounts.values())
        return None if accounts == tuple(known) else accounts

    async def persist_state(self, change: StateChange) -> bool:
        self._check()
        account = self.accounts.get(change.account)
        if account is None or account.state is not change.expected or change.revision not in (None, account.revision):
            return False
        self.accounts[account.id] = replace(
            account,
            state=change.state,
            state_reason=change.reason,
            state_until=change.until,
            revision=account.revision + 1,
        )
        return True

    async def load_sessions(self, since: float, soft_since: float) -> Sequence[Session]:
        self._check()
        alive = [s for s in self.sessions.values() if s.strength is Strength.HARD or s.used_at > soft_since]
        return sorted((s for s in alive if s.used_at > since), key=lambda session: session.used_at)

    async def write_turns(self, replica: uuid.UUID, records: Sequence[TurnRecord]) -> None:
        if self.broken:
            raise LedgerError("the store is broken on purpose")
        rows = [row(replica, record) for record in records]
        self.writes.append([(turn.id, turn.outcome) for turn in rows])
        for record in records:
            if record.session is not None:
                self.sessions[record.session.key] = record.session
        for turn in rows:
            self.turns[turn.id] = {field.name: getattr(turn, field.name) for field in turn._meta.fields}

    async def unapplied_migrations(self) -> int:
        self._check()
        return 0

    def close(self) -> None:
        """Memory holds nothing that has to be released."""
