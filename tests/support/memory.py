"""The store's twin in memory: the same interface, the same rules, no database."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from accounts.circuits import CircuitChange
from accounts.quota import Quota
from accounts.registry import AccountSnapshot, StateChange
from accounts.states import State
from gateway.continuity import leases
from gateway.continuity.leases import Heartbeat, Lease, LeaseKey, Tenure, Written
from gateway.continuity.rules import SessionKey, Strength
from gateway.continuity.sessions import Departure, Session
from gateway.keys import KeySnapshot
from gateway.metering.limits import windows_at
from gateway.metering.prices import Price
from gateway.metering.usage import NO_TALLY, NOTHING, Counts, Elsewhere, Place, Tally
from gateway.replicas.shares import NO_USE, Use
from gateway.replicas.store import Peer
from gateway.storage import StoreError
from gateway.turns.ledger import Committed, LedgerError
from gateway.turns.ledger_store import needs_claim, values
from gateway.turns.names import Alias
from gateway.turns.record import TurnRecord
from gateway.watch.orders import Asked
from gateway.watch.snapshot import Snapshot


@dataclass
class MemoryStore:
    """Everything a runtime keeps, as plain attributes. With `broken` set every call fails, as on a lost database.

    `beats` holds the last heartbeat of each process, None once it has ended; `before_departure` is what another
    process does at the moment when a conversation departs. `now` is the store's own clock.
    """

    keys: list[KeySnapshot] = field(default_factory=list)
    accounts: dict[int, AccountSnapshot] = field(default_factory=dict)
    turns: dict[uuid.UUID, dict[str, Any]] = field(default_factory=dict)
    writes: list[list[tuple[uuid.UUID, str]]] = field(default_factory=list)
    beats: dict[uuid.UUID, datetime | None] = field(default_factory=dict)
    sessions: dict[SessionKey, tuple[Session, uuid.UUID]] = field(default_factory=dict)
    used_keys: dict[int, datetime] = field(default_factory=dict)
    told: dict[uuid.UUID, Snapshot] = field(default_factory=dict)
    orders: dict[uuid.UUID, list[Asked]] = field(default_factory=dict)
    said: dict[int, str] = field(default_factory=dict)
    aliases: list[Alias] = field(default_factory=list)
    prices: list[Price] = field(default_factory=list)
    usage: dict[tuple[uuid.UUID, Place], Counts] = field(default_factory=dict)
    before_departure: Callable[[], Awaitable[None]] | None = None
    urls: dict[uuid.UUID, str] = field(default_factory=dict)
    uses: dict[uuid.UUID, Use] = field(default_factory=dict)
    leases: dict[LeaseKey, Lease] = field(default_factory=dict)
    lease_ttl: float = 30.0
    broken: bool = False
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def _check(self) -> None:
        if self.broken:
            raise StoreError("the store is broken on purpose")

    async def register(self, replica: uuid.UUID, url: str = "") -> None:
        self._check()
        self.beats[replica] = self.now()
        self.urls[replica] = url

    async def beat(self, replica: uuid.UUID, use: Use = NO_USE) -> bool | None:
        self._check()
        if replica not in self.beats:
            return None
        in_time = self._alive(replica)
        if not in_time:
            self._free(lambda owner: owner == replica)
        self.beats[replica], self.uses[replica] = self.now(), use
        return in_time

    async def unregister(self, replica: uuid.UUID) -> None:
        self._check()
        self._free(lambda owner: owner == replica)
        self.beats[replica] = None

    async def peers(self, replica: uuid.UUID) -> Sequence[Peer]:
        self._check()
        others = [each for each in self.beats if each != replica and self._alive(each)]
        return [Peer(each, self.urls.get(each, ""), self.uses.get(each, NO_USE)) for each in others]

    async def close_interrupted(self) -> int:
        closed = await self.close_dead()
        return closed + self._interrupt(lambda replica: self.beats.get(replica) is None)

    async def close_dead(self) -> int:
        self._check()
        dead = {replica for replica, beat in self.beats.items() if beat is not None and not self._alive(replica)}
        self.beats.update(dict.fromkeys(dead))
        self._free(lambda owner: owner in dead)
        return self._interrupt(lambda replica: replica in dead)

    def _alive(self, replica: uuid.UUID) -> bool:
        beat = self.beats.get(replica)
        return beat is not None and Heartbeat(beat.timestamp()).alive(self.now().timestamp(), self.lease_ttl)

    def _free(self, whose: Callable[[uuid.UUID], bool]) -> None:
        for key, lease in self.leases.items():
            if lease.owner is not None and whose(lease.owner):
                self.leases[key] = replace(lease, owner=None)

    def _interrupt(self, has_ended: Callable[[uuid.UUID], bool]) -> int:
        turns = [turn for turn in self.turns.values() if not turn["outcome"] and has_ended(turn["replica"])]
        for turn in turns:
            turn["outcome"], turn["cause"] = "interrupted", "process_died"
            turn["settled_at"] = datetime.now(UTC)
        return len(turns)

    async def leads(self, replica: uuid.UUID) -> bool:
        self._check()
        return next((each for each in self.beats if self._alive(each)), None) == replica

    async def release_leases(self, replica: uuid.UUID, tenures: Sequence[Tenure]) -> None:
        self._check()
        for tenure in tenures:
            for key, lease in self.leases.items():
                if lease.id == tenure.lease:
                    self.leases[key] = leases.release(lease, replica, tenure.epoch) or lease

    async def owner_of_session(self, key: LeaseKey) -> uuid.UUID | None:
        self._check()
        lease = self.leases.get(key)
        return lease.owner if lease is not None and lease.owner is not None and self._alive(lease.owner) else None

    async def owner_of_response(self, client: int, response_id: str) -> uuid.UUID | None:
        self._check()
        made = [t for t in self.turns.values() if (t["key_id"], t["response_id"]) == (client, response_id)]
        return next((turn["replica"] for turn in made if turn["anchored"] and self._stands(turn)), None)

    def _stands(self, turn: dict[str, Any]) -> bool:
        """Whether what the turn ran under still is its replica's."""
        lease = next((each for each in self.leases.values() if each.id == turn["lease_id"]), None)
        owner = turn["replica"]
        return lease is not None and leases.may_publish(lease, owner, turn["lease_epoch"], self._alive(owner))

    def _claim(self, replica: uuid.UUID, keys: Iterable[LeaseKey]) -> dict[LeaseKey, Tenure]:
        granted = {}
        for key in keys:
            known = self.leases.get(key, Lease(len(self.leases) + 1))
            owner_alive = known.owner is not None and self._alive(known.owner)
            claimed = leases.claim(known, replica, owner_alive)
            if claimed is not None:
                self.leases[key] = claimed
                granted[key] = Tenure(claimed.id, claimed.epoch)
        return granted

    async def save_quotas(self, quotas: Mapping[int, Quota]) -> None:
        self._check()

    async def save_circuit(self, change: CircuitChange) -> bool:
        self._check()
        account = self.accounts.get(change.account)
        if account is None or account.circuit.version != change.circuit.version - 1:
            return False
        self.accounts[account.id] = replace(account, circuit=change.circuit, revision=account.revision + 1)
        return True

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

    async def find_maker(self, client: int, response_id: str) -> int | None:
        self._check()
        made = [t for t in self.turns.values() if (t["key_id"], t["response_id"]) == (client, response_id)]
        return next((t["account_id"] for t in made if t["account_id"] is not None), None)

    async def load_sessions(self, reader: uuid.UUID, since: float, soft_since: float) -> Sequence[Session]:
        self._check()
        fresh = [(s, writer) for s, writer in self.sessions.values() if s.used_at > since]
        others = [s for s, writer in fresh if writer != reader]
        alive = [s for s in others if s.strength is not Strength.SOFT or s.used_at > soft_since]
        return sorted(alive, key=lambda session: session.used_at)

    async def load_aliases(self) -> Sequence[Alias]:
        self._check()
        return tuple(self.aliases)

    async def load_prices(self) -> Sequence[Price]:
        self._check()
        return tuple(self.prices)

    async def load_usage(self, reader: uuid.UUID, keys: Collection[int], now: float) -> Elsewhere:
        self._check()
        return self._elsewhere(reader, keys, now)

    def _elsewhere(self, reader: uuid.UUID, keys: Collection[int], now: float) -> Elsewhere:
        counts: dict[Place, Counts] = {}
        windows = windows_at(now)
        for (replica, place), counted in self.usage.items():
            if place[0] in keys and place[1] in windows and replica != reader:
                counts[place] = counts.get(place, NOTHING) + counted
        bounded = {key.id for key in self.keys if key.id in keys and key.limits.turns is not None}
        others = {replica for replica, beat in self.beats.items() if beat is not None and replica != reader}
        open_turns = [
            t for t in self.turns.values() if not t["outcome"] and t["replica"] in others and t["via"] != reader
        ]
        return Elsewhere(counts, Counter(t["key_id"] for t in open_turns if t["key_id"] in bounded))

    async def find_session(self, key: SessionKey) -> Session | None:
        self._check()
        session, _ = self.sessions.get(key, (None, None))
        return session

    async def depart(self, replica: uuid.UUID, departure: Departure) -> bool:
        self._check()
        if self.before_departure is not None:
            await self.before_departure()
        before = departure.before
        stored, account = await self.find_session(before.key), self.accounts.get(before.account_id)
        usable = account is not None and account.state_at(departure.not_before) is State.ACTIVE
        if stored is None or (stored.account_id, stored.strength) != (before.account_id, before.strength) or usable:
            return False
        self.sessions[before.key] = (departure.after, replica)
        return True

    async def write_turns(
        self, replica: uuid.UUID, records: Sequence[TurnRecord], tally: Tally = NO_TALLY
    ) -> Committed:
        if self.broken:
            raise LedgerError("the store is broken on purpose")
        rows = [values(replica, record) for record in records]
        self.writes.append([(turn["id"], turn["outcome"]) for turn in rows])
        for record in records:
            for session in record.sessions:
                stored, _ = self.sessions.get(session.key, (session, replica))
                if stored.used_at <= session.used_at:
                    self.sessions[session.key] = (session, replica)
        wanted = {record.lease for record in records if record.lease is not None and needs_claim(record)}
        granted = self._claim(replica, sorted(wanted))
        for turn in rows:
            self.turns[turn["id"]] = turn
        leased = Written(granted, self._publish(records))
        self.usage.update({(replica, place): counts for place, counts in tally.usage.items()})
        return Committed(leased, self._elsewhere(replica, tally.watched, tally.at))

    def _publish(self, records: Sequence[TurnRecord]) -> dict[LeaseKey, Tenure]:
        fenced: dict[LeaseKey, Tenure] = {}
        for record in records:
            if record.anchored and record.lease is not None and record.tenure is not None:
                turn = self.turns[record.request.id]
                turn["anchored"] = self._stands(turn)
                if not turn["anchored"]:
                    fenced[record.lease] = record.tenure
        return fenced

    async def tell(self, replica: uuid.UUID, snapshot: Snapshot) -> None:
        self._check()
        self.told[replica] = snapshot

    async def take_orders(self, replica: uuid.UUID) -> Sequence[Asked]:
        self._check()
        return [order for order in self.orders.get(replica, ()) if order.id not in self.said]

    async def finish_order(self, order: int, said: str) -> None:
        self._check()
        self.said[order] = said

    async def problem(self) -> str:
        self._check()
        return ""

    async def unapplied_migrations(self) -> int:
        self._check()
        return 0

    def close(self) -> None:
        """Memory holds nothing that has to be released."""
