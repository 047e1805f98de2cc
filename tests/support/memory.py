"""The store's twin in memory: the same interface, the same rules, no database."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from accounts.circuit import CircuitState
from accounts.quota import Quota
from accounts.registry import AccountSnapshot, StateChange
from gateway.continuity.rules import SessionKey, Strength
from gateway.continuity.sessions import Session
from gateway.keys import KeySnapshot
from gateway.storage import StoreError
from gateway.turns.ledger import LedgerError
from gateway.turns.ledger_store import values
from gateway.turns.record import TurnRecord


@dataclass
class MemoryStore:
    """Everything a runtime keeps, as plain attributes. With `broken` set every call fails, as on a lost database.

    `beats` holds the last heartbeat of each process, None once it has ended.
    """

    keys: list[KeySnapshot] = field(default_factory=list)
    accounts: dict[int, AccountSnapshot] = field(default_factory=dict)
    turns: dict[uuid.UUID, dict[str, Any]] = field(default_factory=dict)
    writes: list[list[tuple[uuid.UUID, str]]] = field(default_factory=list)
    beats: dict[uuid.UUID, datetime | None] = field(default_factory=dict)
    sessions: dict[SessionKey, tuple[Session, uuid.UUID]] = field(default_factory=dict)
    circuits: list[dict[int, CircuitState]] = field(default_factory=list)
    used_keys: dict[int, datetime] = field(default_factory=dict)
    broken: bool = False

    def _check(self) -> None:
        if self.broken:
            raise StoreError("the store is broken on purpose")

    async def register(self, replica: uuid.UUID) -> None:
        self._check()
        self.beats[replica] = datetime.now(UTC)

    async def beat(self, replica: uuid.UUID) -> bool:
        self._check()
        known = replica in self.beats
        if known:
            self.beats[replica] = datetime.now(UTC)
        return known

    async def unregister(self, replica: uuid.UUID) -> None:
        self._check()
        self.beats[replica] = None

    async def close_interrupted(self, dead_after: timedelta) -> int:
        closed = await self.close_dead(dead_after)
        return closed + self._interrupt(lambda replica: self.beats.get(replica) is None)

    async def close_dead(self, dead_after: timedelta) -> int:
        self._check()
        oldest = datetime.now(UTC) - dead_after
        dead = {replica for replica, beat in self.beats.items() if beat is not None and beat <= oldest}
        self.beats.update(dict.fromkeys(dead))
        return self._interrupt(lambda replica: replica in dead)

    def _interrupt(self, has_ended: Callable[[uuid.UUID], bool]) -> int:
        turns = [turn for turn in self.turns.values() if not turn["outcome"] and has_ended(turn["replica"])]
        for turn in turns:
            turn["outcome"], turn["cause"] = "interrupted", "process_died"
        return len(turns)

    async def leads(self, replica: uuid.UUID, dead_after: timedelta) -> bool:
        self._check()
        oldest = datetime.now(UTC) - dead_after
        return next((each for each, beat in self.beats.items() if beat is not None and beat > oldest), None) == replica

    async def save_quotas(self, quotas: Mapping[int, Quota]) -> None:
        self._check()

    async def note_circuits(self, states: Mapping[int, CircuitState], turn: uuid.UUID) -> None:
        self._check()
        self.circuits.append(dict(states))

    async def load_keys(self) -> Sequence[KeySnapshot]:
        self._check()
        return tuple(self.keys)

    async def mark_used(self, used: Mapping[int, datetime]) -> None:
        self._check()
        self.used_keys.update(used)

    async def mark_accounts_used(self, used: Mapping[int, float]) -> None:
        self._check()

    async def load_accounts(self, known: Sequence[AccountSnapshot]) -> Sequence[AccountSnapshot] | None:
        self._check()
        accounts = tuple(sorted(self.accounts.values(), key=lambda account: (account.priority, account.name)))
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

    async def find_response(self, client: int, response_id: str) -> int | None:
        self._check()
        made = [t for t in self.turns.values() if (t["key_id"], t["response_id"]) == (client, response_id)]
        return next((t["account_id"] for t in made if t["upstream"] == "http" and t["outcome"] == "completed"), None)

    async def load_sessions(self, reader: uuid.UUID, since: float, soft_since: float) -> Sequence[Session]:
        self._check()
        others = [s for s, writer in self.sessions.values() if writer != reader]
        alive = [s for s in others if s.strength is Strength.HARD or s.used_at > soft_since]
        return sorted((s for s in alive if s.used_at > since), key=lambda session: session.used_at)

    async def write_turns(self, replica: uuid.UUID, records: Sequence[TurnRecord]) -> None:
        if self.broken:
            raise LedgerError("the store is broken on purpose")
        rows = [values(replica, record) for record in records]
        self.writes.append([(turn["id"], turn["outcome"]) for turn in rows])
        for record in records:
            if record.session is not None:
                self.sessions[record.session.key] = (record.session, replica)
        for turn in rows:
            self.turns[turn["id"]] = turn

    async def unapplied_migrations(self) -> int:
        self._check()
        return 0

    def close(self) -> None:
        """Memory holds nothing that has to be released."""
