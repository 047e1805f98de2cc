"""Who owns a conversation's lanes: the rules of leases, as functions of rows, owners, epochs and time. Pure.

A lease says that one replica may continue a conversation on its lanes. Every claim raises its epoch, one by the same
replica too, so what a predecessor says late changes nothing. It lives as long as its owner's heartbeat: ten thousand
conversations cost one renewal. The stores write each of these functions as one conditional statement.

A replica is a process: it takes a new id at every start, so its id says which process of a machine it was as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

ANONYMOUS = "anonymous"


class LeaseState(StrEnum):
    FREE = "free"
    HELD = "held"
    EXPIRED = "expired"


class LeaseStep(StrEnum):
    CLAIM = "claim"
    RENEW = "renew"
    PUBLISH = "publish"
    RELEASE = "release"
    EXPIRE = "expire"


TRANSITIONS: dict[tuple[LeaseState, LeaseStep], LeaseState] = {
    (LeaseState.FREE, LeaseStep.CLAIM): LeaseState.HELD,
    (LeaseState.HELD, LeaseStep.RENEW): LeaseState.HELD,
    (LeaseState.HELD, LeaseStep.PUBLISH): LeaseState.HELD,
    (LeaseState.HELD, LeaseStep.CLAIM): LeaseState.HELD,
    (LeaseState.HELD, LeaseStep.RELEASE): LeaseState.FREE,
    (LeaseState.HELD, LeaseStep.EXPIRE): LeaseState.EXPIRED,
    (LeaseState.EXPIRED, LeaseStep.CLAIM): LeaseState.HELD,
    (LeaseState.EXPIRED, LeaseStep.RELEASE): LeaseState.FREE,
}
"""A held lease is claimed again by its own owner only. What is not here is refused, and changes nothing."""


class LeaseKey(NamedTuple):
    """What is leased: the lanes of one client (the id of its key) for one conversation, as lanes name it."""

    client: int
    session: str


class Tenure(NamedTuple):
    """A claim that was granted: the lease's number in the store, and the epoch that proves it."""

    lease: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Lease:
    """The row of a lease. `owner` is None while it is free."""

    id: int
    owner: UUID | None = None
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The row of a replica: when it was last heard (seconds), and whether somebody has declared it ended."""

    at: float
    ended: bool = False

    def alive(self, now: float, ttl: float) -> bool:
        """Whether leases of this replica count at `now`."""
        return not self.ended and now - self.at < ttl


def state(lease: Lease, owner_alive: bool) -> LeaseState:
    """What the row says, given whether its owner's heartbeat is alive."""
    if lease.owner is None:
        return LeaseState.FREE
    return LeaseState.HELD if owner_alive else LeaseState.EXPIRED


def claim(lease: Lease, claimant: UUID, owner_alive: bool) -> Lease | None:
    """The lease in the claimant's hands with the next epoch, or None: another replica that lives holds it."""
    if state(lease, owner_alive) is LeaseState.HELD and lease.owner != claimant:
        return None
    return replace(lease, owner=claimant, epoch=lease.epoch + 1)


def holds(lease: Lease, owner: UUID, epoch: int) -> bool:
    """Whether the row still proves this owner with this epoch."""
    return lease.owner == owner and lease.epoch == epoch


def release(lease: Lease, owner: UUID, epoch: int) -> Lease | None:
    """The lease set free, or None: it is somebody else's by now, or was claimed again."""
    return replace(lease, owner=None) if holds(lease, owner, epoch) else None


def may_publish(lease: Lease, owner: UUID, epoch: int, owner_alive: bool) -> bool:
    """Whether an anchor made under this epoch is to be found by others."""
    return owner_alive and holds(lease, owner, epoch)


def beat(heartbeat: Heartbeat, now: float, ttl: float) -> tuple[Heartbeat, bool]:
    """The heartbeat at `now`, and whether it came in time. After one that did not, every lease must be set free."""
    return Heartbeat(now), heartbeat.alive(now, ttl)


@dataclass(frozen=True, slots=True)
class Written:
    """What a commit made of the leases in it: claims that were granted, and tenures that turned out to be over."""

    granted: Mapping[LeaseKey, Tenure] = field(default_factory=dict)
    fenced: Mapping[LeaseKey, Tenure] = field(default_factory=dict)


class Holdings:
    """The leases that one replica believes it holds.

    The belief ends before anybody else may claim: it counts from when a heartbeat was *asked* for, in this process's
    own time, while the store counts from when it was written. Clocks need not agree, only run equally fast. `term`
    counts how often it ended; what was asked for in an earlier term is worth nothing.
    """

    def __init__(self, ttl: float) -> None:
        self._ttl = ttl
        self._valid_until = float("-inf")
        self._held: dict[LeaseKey, Tenure] = {}
        self.term = 0

    def __len__(self) -> int:
        return len(self._held)

    def held(self) -> list[LeaseKey]:
        """What this replica owns, if it is valid."""
        return list(self._held)

    def renewed(self, asked_at: float) -> None:
        """A heartbeat that was asked for at `asked_at` was written. If `valid` was over, `drop_all` first."""
        self._valid_until = max(self._valid_until, asked_at + self._ttl)

    def valid(self, now: float) -> bool:
        """Whether this replica may act as an owner of anything."""
        return now < self._valid_until

    def find(self, key: LeaseKey, now: float) -> Tenure | None:
        """The proof of owning `key`, None when it is not held, or not any more."""
        return self._held.get(key) if self.valid(now) else None

    def granted(self, leases: Mapping[LeaseKey, Tenure], term: int) -> None:
        """The store has granted these claims, which were made in `term`."""
        if term == self.term:
            self._held.update(leases)

    def drop(self, key: LeaseKey) -> Tenure | None:
        """Stop owning `key`; what is returned has to be released in the store."""
        return self._held.pop(key, None)

    def drop_all(self) -> list[LeaseKey]:
        """Stop owning anything, as a replica must whose heartbeat is late."""
        keys = list(self._held)
        self._held.clear()
        self.term += 1
        return keys


def lease_key(replica: UUID, client: int, session: str) -> LeaseKey:
    """The lease of lanes that are named `session`; spare lanes without a conversation are each replica's own."""
    return LeaseKey(client, f"{ANONYMOUS}:{replica}" if session == ANONYMOUS else session)


def lane_session(key: LeaseKey) -> str:
    """What the lanes under a lease are named."""
    return ANONYMOUS if key.session.startswith(f"{ANONYMOUS}:") else key.session
