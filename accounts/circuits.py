"""The circuits of a pool, and what the processes that share the pool tell each other of them.

Pure: times are arguments, and others do the storing. Each process counts failures by itself. What it makes of them,
that a circuit is open, is being probed, or is closed, is shared by a stored copy with a version: whoever changes a
circuit writes it as the next version of the one it knows, and whoever finds a newer version takes that for its own. So
two processes that change one circuit at the same time do not overwrite each other, and an operator's word is heard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from uuid import UUID

from accounts.circuit import (
    HEALTHY,
    Circuit,
    CircuitSettings,
    CircuitState,
    admit,
    common_failure,
    failed,
    pardoned,
    released,
    succeeded,
)

# Who changes a circuit when no turn is named.
TRAFFIC = "traffic"
# What a process calls itself that shares its circuits with no other.
ALONE = "alone"


@dataclass(frozen=True, slots=True)
class SharedCircuit:
    """What is stored of a circuit; the fields mean what they mean in `Circuit`.

    `version` counts the changes, and is 0 as long as there was none. `writer` is the process that wrote it, empty for
    an operator. `probed_at` is when the newest probe that is under way was begun.
    """

    version: int = 0
    writer: str = ""
    state: CircuitState = CircuitState.CLOSED
    since: float = 0.0
    until: float | None = None
    ejections: int = 0
    good_probes: int = 0
    probed_at: float | None = None
    failed_as: str | None = None


UNTOUCHED = SharedCircuit()


@dataclass(frozen=True, slots=True)
class CircuitChange:
    """A circuit to be stored as version `circuit.version`, if the stored one is still the version before it.

    `by` is the turn that changed it (its id), or else who did.
    """

    account: int
    circuit: SharedCircuit
    by: UUID | str


def shared(circuit: Circuit, version: int, writer: str) -> SharedCircuit:
    """What others have to know of `circuit`."""
    return SharedCircuit(
        version=version,
        writer=writer,
        state=circuit.state,
        since=circuit.since,
        until=circuit.until,
        ejections=circuit.ejections,
        good_probes=circuit.good_probes,
        probed_at=max(circuit.probes, default=None),
        failed_as=circuit.failed_as,
    )


def restored(stored: SharedCircuit, own: Circuit = HEALTHY, now: float = 0.0) -> Circuit:
    """The circuit as others left it, heard of `now`.

    Of our `own` the probes that are under way are kept, and how the last turn ended.
    """
    half_open = stored.state is CircuitState.HALF_OPEN
    heard = stored.state is CircuitState.OPEN and stored.failed_as is not None
    return Circuit(
        state=stored.state,
        since=stored.since,
        heard_at=now,
        until=stored.until,
        probes=own.probes if half_open else (),
        probed_elsewhere=stored.probed_at if half_open else None,
        good_probes=stored.good_probes if half_open else 0,
        ejections=stored.ejections,
        reported_at=stored.since if heard else own.reported_at,
        failed_as=stored.failed_as if heard else own.failed_as,
    )


class Circuits:
    """The circuits of a pool, as the process `writer` knows them.

    For each turn: `admit` it, then report it once, with the time it was admitted at. The methods that report return
    the circuits that changed their state, by account, with the new state. What has to be stored is in `take_unsaved`;
    say what was `saved`, and `learn` what is found stored.
    """

    def __init__(self, settings: CircuitSettings | None = None, writer: str = ALONE) -> None:
        self._settings = settings or CircuitSettings()
        self._writer = writer
        self._circuits: dict[int, Circuit] = {}
        self._versions: dict[int, int] = {}
        self._unsaved: dict[int, UUID | str] = {}

    def __repr__(self) -> str:
        states = Counter(circuit.state for circuit in self._circuits.values())
        counts = ", ".join(f"{states[state]} {state}" for state in CircuitState if states[state])
        return f"<Circuits {counts or 'untried'} | {len(self._unsaved)} unsaved>"

    @property
    def has_unsaved(self) -> bool:
        """Whether there is anything that others should know."""
        return bool(self._unsaved)

    def get(self, account: int) -> Circuit:
        """The circuit of `account`; a healthy one if nothing is known of it."""
        return self._circuits.get(account, HEALTHY)

    def admit(self, account: int, now: float, by: UUID | str = TRAFFIC) -> dict[int, CircuitState]:
        """A turn is given to `account` at `now`."""
        return self._put({account: admit(self.get(account), now)}, by)

    def succeeded(self, account: int, began: float, now: float, by: UUID | str = TRAFFIC) -> dict[int, CircuitState]:
        """The turn has shown that the account works: its response has started, or was refused for its own body."""
        return self._put({account: succeeded(self.get(account), began, now, self._settings)}, by)

    def failed(
        self, account: int, kind: str, began: float, now: float, pool: Collection[int], by: UUID | str = TRAFFIC
    ) -> dict[int, CircuitState]:
        """The turn has failed by the account's fault, and `kind` says how.

        `pool` are the accounts that turns may go to at present, this one among them. When all of them fail alike,
        all are pardoned.
        """
        after = {account: failed(self.get(account), kind, began, now, self._settings)}
        alike = {each: after.get(each) or self.get(each) for each in pool}
        if common_failure(alike.values(), now) is not None:
            after |= {each: pardoned(circuit, now) for each, circuit in alike.items()}
        return self._put(after, by)

    def released(self, account: int, began: float, by: UUID | str = TRAFFIC) -> None:
        """The turn is over and says nothing about the account."""
        self._put({account: released(self.get(account), began)}, by)

    def keep(self, accounts: Collection[int]) -> None:
        """Forget all accounts but these: the others have left the pool."""
        self._circuits = {account: circuit for account, circuit in self._circuits.items() if account in accounts}
        self._versions = {account: version for account, version in self._versions.items() if account in accounts}
        self._unsaved = {account: by for account, by in self._unsaved.items() if account in accounts}

    def learn(self, account: int, stored: SharedCircuit, now: float) -> None:
        """This is found stored at `now`. What another one has written takes the place of what is known here."""
        if stored.version <= self._versions.get(account, 0):
            return
        self._versions[account] = stored.version
        if stored.writer != self._writer or account not in self._circuits:
            self._circuits[account] = restored(stored, self.get(account), now)
            self._unsaved.pop(account, None)

    def take_unsaved(self) -> list[CircuitChange]:
        """What has changed since the last call. Store each, then say that it was `saved` or give it to `put_back`.

        A change that is refused because others were first needs neither: what they wrote will be learned.
        """
        unsaved, self._unsaved = self._unsaved, {}
        return [
            CircuitChange(account, shared(self.get(account), self._versions.get(account, 0) + 1, self._writer), by)
            for account, by in unsaved.items()
        ]

    def saved(self, change: CircuitChange) -> None:
        """The change is stored."""
        if change.account in self._circuits:
            self._versions[change.account] = max(change.circuit.version, self._versions.get(change.account, 0))

    def put_back(self, change: CircuitChange) -> None:
        """The change could not be stored now."""
        self._unsaved.setdefault(change.account, change.by)

    def _put(self, circuits: Mapping[int, Circuit], by: UUID | str) -> dict[int, CircuitState]:
        changed = {}
        for account, circuit in circuits.items():
            before = self.get(account)
            if circuit.state is not before.state:
                changed[account] = circuit.state
            if _told(circuit) != _told(before):
                self._unsaved[account] = by
            self._circuits[account] = circuit
        return changed


def _told(circuit: Circuit) -> tuple[CircuitState, float | None, int, int, float | None]:
    """What makes a change worth writing; counts of failures and successes alone do not."""
    probed_at = max(circuit.probes, default=None)
    return circuit.state, circuit.until, circuit.ejections, circuit.good_probes, probed_at
