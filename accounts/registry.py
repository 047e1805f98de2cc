"""The pool in memory: what the traffic code reads instead of the database.

One task, `run`, keeps it: it writes down what the traffic code has marked, then loads what has changed.
Reading and marking are synchronous and touch nothing but memory.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias
from uuid import UUID

import structlog

from accounts.circuit import HEALTHY, Circuit
from accounts.circuits import TRAFFIC, UNTOUCHED, SharedCircuit
from accounts.credentials import Credentials
from accounts.quota import NOTHING_KNOWN, Quota
from accounts.selection import Candidate
from accounts.states import LONGEST_LIMIT, Kind, State, Transport, What, state_at

# The states that a mark may replace; the others are the operator's word, or as bad already.
MARKABLE = frozenset({State.ACTIVE, State.LIMITED})

log: structlog.typing.FilteringBoundLogger = structlog.get_logger("accounts")


@dataclass(frozen=True, slots=True)
class AccountSnapshot:
    """An account as it was at its `revision`; replaced, never changed.

    `state_until` is unix seconds. `streams` is the most responses it may have in flight. `credentials` is
    None when there are none or they cannot be opened, and then the state is neither active nor limited, else
    `ValueError`. `quota` is what the database knows of the account's usage, `circuit` what
    it knows of its circuit. `models` are those in the account's own catalogue, None while that is not known.
    What goes to the account goes by its own `proxy`, if it has one, or not at all.
    """

    id: int
    name: str
    kind: Kind
    base_url: str
    transport: Transport
    priority: int
    state: State
    state_reason: str
    state_until: float | None
    streams: int
    credentials: Credentials | None
    account_id: str = field(repr=False)
    revision: int
    quota: Quota = field(default=NOTHING_KNOWN, repr=False)
    circuit: SharedCircuit = UNTOUCHED
    models: frozenset[str] | None = field(default=None, repr=False)
    proxy: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.credentials is None and self.state in MARKABLE:
            raise ValueError(f"Account {self.id} is {self.state} without credentials; it must be needs_login.")

    def state_at(self, now: float) -> State:
        """Return the state that counts at `now` (unix seconds): a limit whose end has come is over."""
        return state_at(self.state, self.state_until, now)

    def candidate(self, active: int, circuit: Circuit = HEALTHY, quota: Quota = NOTHING_KNOWN) -> Candidate:
        """Return what the selection needs: the responses in flight, and what is known."""
        return Candidate(
            id=self.id,
            name=self.name,
            kind=self.kind,
            priority=self.priority,
            state=self.state,
            state_until=self.state_until,
            active=active,
            cap=self.streams,
            models=self.models,
            circuit=circuit,
            quota=quota,
        )


@dataclass(frozen=True, slots=True)
class StateChange:
    """A new state for an account that is still in the state `expected`. `until` is unix seconds.

    With a `revision` the account must not have changed at all since: what is learned from a refused token
    must not be written to an account that has a new one. `by` is the turn that found it out (its id), or else who
    changes it; `what` is what its event calls the change, None for the word in the table of transitions.
    """

    account: int
    expected: State
    state: State
    reason: str
    until: float | None = None
    revision: int | None = None
    by: UUID | str = TRAFFIC
    what: What | None = None

    def applies_to(self, account: AccountSnapshot) -> bool:
        """Say whether `account` is still as this change expects it."""
        return account.state is self.expected and self.revision in (None, account.revision)


@dataclass(frozen=True, slots=True)
class PoolChange:
    """What one refresh or mark has changed. `changed` holds (before, after)."""

    added: tuple[AccountSnapshot, ...] = ()
    changed: tuple[tuple[AccountSnapshot, AccountSnapshot], ...] = ()
    removed: tuple[AccountSnapshot, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)


# Gets the accounts as last loaded; returns all accounts as they are now, in the order of the pool, or None
# when none has changed.
Load: TypeAlias = Callable[[Sequence[AccountSnapshot]], Awaitable[Sequence[AccountSnapshot] | None]]
# Writes a state change if its conditions still hold; returns whether they did.
Persist: TypeAlias = Callable[[StateChange], Awaitable[bool]]
# Is called in the event loop after each change; it must neither block nor raise.
Listener: TypeAlias = Callable[[PoolChange], None]


@dataclass(frozen=True, slots=True)
class Timing:
    """Time as an argument. `interval` is seconds between two loads; a change is seen after one and a load."""

    interval: float = 1.0
    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class Registry:
    """All accounts in memory.

    Await `refresh` once before serving, so that a pool that cannot be loaded stops the start; then keep `run`
    as a task until the end, and await `flush` after it, so that the last marks are kept.
    """

    def __init__(self, load: Load, persist: Persist, timing: Timing | None = None) -> None:
        self._load = load
        self._persist = persist
        self._timing = timing or Timing()
        self._loaded: tuple[AccountSnapshot, ...] = ()
        self._marks: dict[int, StateChange] = {}
        self._accounts: dict[int, AccountSnapshot] = {}
        self._ordered: tuple[AccountSnapshot, ...] = ()
        self._listeners: list[Listener] = []
        self._loaded_at: float | None = None
        self._storing = asyncio.Lock()
        self._complaints: set[str] = set()

    def __repr__(self) -> str:
        now = self._timing.wall()
        states = Counter(account.state_at(now) for account in self._ordered)
        counts = ", ".join(f"{states[state]} {state}" for state in State if states[state])
        age = self.age
        loaded = "never loaded" if age is None else f"loaded {age:.1f} s ago"
        return f"<Registry {counts or 'no accounts'} | {len(self._marks)} unsaved, {loaded}>"

    @property
    def accounts(self) -> tuple[AccountSnapshot, ...]:
        """All accounts, the lower priority number first, then by name."""
        return self._ordered

    def get(self, account: int) -> AccountSnapshot | None:
        """Return the account with this id, None when the pool has none."""
        return self._accounts.get(account)

    @property
    def age(self) -> float | None:
        """Seconds since the database was last read with success; None before the first time."""
        return None if self._loaded_at is None else self._timing.monotonic() - self._loaded_at

    def on_change(self, listener: Listener) -> None:
        """Call `listener` in the event loop after each change, once `accounts` shows it."""
        self._listeners.append(listener)

    async def run(self) -> None:
        """Keep the pool up to date until cancelled; a database that fails is reported, the pool stays."""
        while True:
            await self._attempt("accounts_not_saved", self.flush)
            await self._attempt("accounts_not_loaded", self.refresh)
            await self._timing.sleep(self._timing.interval)

    async def _attempt(self, event: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work`; report the first failure of a row of them, and the success that ends it."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - `load` and `persist` are foreign; pool and marks stay as they were
            if event not in self._complaints:
                self._complaints.add(event)
                log.error(event, error=type(error).__name__, age=self.age, unsaved=len(self._marks))
        else:
            if event in self._complaints:
                self._complaints.discard(event)
                log.info(f"{event}_is_over")

    async def refresh(self) -> None:
        """Load what has changed. What `load` raises comes through, and the old pool stays as it was."""
        async with self._storing:
            loaded = await self._load(self._loaded)
            self._loaded_at = self._timing.monotonic()
            if loaded is not None:
                self._loaded = tuple(loaded)
                self._show(self._with_mark(account) for account in self._loaded)

    async def flush(self) -> None:
        """Write down the marks. What `persist` raises comes through; marks left wait for the next call."""
        # Under the lock: a load that read before the write must not be shown after the mark is gone.
        async with self._storing:
            for mark in list(self._marks.values()):
                await self._write(mark)

    async def _write(self, mark: StateChange) -> None:
        over = mark.until is not None and mark.until <= self._timing.wall()
        # When it does not apply any more, the account has changed, and the next refresh brings its state.
        written = not over and await self._persist(mark)
        newer = self._marks.get(mark.account)
        if newer is mark:
            del self._marks[mark.account]
        elif newer is not None and written:
            self._marks[mark.account] = replace(newer, expected=mark.state)

    def mark_limited(self, account: int, until: float, reason: str, by: UUID | str = TRAFFIC) -> bool:
        """Take the account out until `until` (unix seconds) at once, here and soon in the database.

        Returns whether this changed anything: not for an account that is gone, out for another cause or
        limited for longer, nor for a time in the past. `reason` is for people and must not contain personal
        data; `by` is the turn that was refused. Raises `ValueError` when `until` is not a number.
        """
        if math.isnan(until):
            raise ValueError(f"Account {account} cannot be limited until NaN; give unix seconds.")
        now = self._timing.wall()
        until = min(until, now + LONGEST_LIMIT)
        current = self._accounts.get(account)
        if current is None or current.state not in MARKABLE or until <= max(now, current.state_until or now):
            return False
        self._mark(current, StateChange(account, current.state, State.LIMITED, reason, until, by=by))
        return True

    def mark_needs_login(self, account: int, reason: str, by: UUID | str = TRAFFIC) -> bool:
        """Take the account out until its operator signs in again, here at once and soon in the database.

        Returns whether this changed anything: not for an account that is gone or out for another cause than a
        limit. `reason` is for people and must not contain personal data; `by` is the turn that was refused.
        """
        current = self._accounts.get(account)
        if current is None or current.state not in MARKABLE:
            return False
        change = StateChange(account, current.state, State.NEEDS_LOGIN, reason, revision=current.revision, by=by)
        self._mark(current, change)
        return True

    def _mark(self, current: AccountSnapshot, mark: StateChange) -> None:
        unsaved = self._marks.get(current.id)
        if unsaved is not None:
            # The database has not seen the mark that this one replaces.
            mark = replace(mark, expected=unsaved.expected)
        self._marks[current.id] = mark
        shown = _marked(current, mark)
        self._show(shown if account is current else account for account in self._ordered)

    def _with_mark(self, account: AccountSnapshot) -> AccountSnapshot:
        """Lay the mark, if any, over a newly loaded account; drop it when the account has moved on."""
        mark = self._marks.get(account.id)
        if mark is None:
            return account
        if not mark.applies_to(account):
            del self._marks[account.id]
            return account
        return _marked(account, mark)

    def _show(self, accounts: Iterable[AccountSnapshot]) -> None:
        before = self._accounts
        self._ordered = tuple(accounts)
        self._accounts = {account.id: account for account in self._ordered}
        for gone in self._marks.keys() - self._accounts.keys():
            del self._marks[gone]
        change = PoolChange(
            added=tuple(account for account in self._ordered if account.id not in before),
            changed=tuple(
                (before[account.id], account)
                for account in self._ordered
                if account.id in before and before[account.id] != account
            ),
            removed=tuple(account for account in before.values() if account.id not in self._accounts),
        )
        if change:
            self._tell(change)

    def _tell(self, change: PoolChange) -> None:
        for listener in self._listeners:
            try:
                listener(change)
            except Exception:  # one listener's defect must not keep the change from the others
                log.exception("account_listener_failed")


def _marked(account: AccountSnapshot, mark: StateChange) -> AccountSnapshot:
    return replace(account, state=mark.state, state_reason=mark.reason, state_until=mark.until)
