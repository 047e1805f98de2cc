"""Asks the selection for one process: accounts, streams, circuits and usage as they are in memory at this moment."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from accounts.circuit import Circuit
from accounts.quota import Quota
from accounts.registry import AccountSnapshot, Registry
from accounts.selection import Candidate, Choice, SelectionRequest, Strategy, choose
from gateway.clock import Clock
from gateway.continuity.rules import is_clearly_better, stays
from gateway.turns.health import Health
from gateway.turns.slots import AccountStreams


@dataclass(slots=True)
class Tried:
    """What a turn has learned of accounts: those that refused it, and those that could not be reached."""

    refused: dict[int, str] = field(default_factory=dict)
    unreachable: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Known:
    """A candidate, and what it was made from."""

    account: AccountSnapshot
    active: int
    circuit: Circuit
    quota: Quota
    candidate: Candidate

    def holds(self, account: AccountSnapshot, active: int, circuit: Circuit, quota: Quota) -> bool:
        """Whether nothing has changed. All but the number are replaced as a whole when they change."""
        return self.account is account and self.active == active and self.circuit is circuit and self.quota is quota


class Chooser:
    """Makes every choice of the process."""

    def __init__(
        self, registry: Registry, health: Health, streams: AccountStreams, clock: Clock, strategy: Strategy
    ) -> None:
        self._registry = registry
        self._health = health
        self._streams = streams
        self._clock = clock
        self._strategy = strategy
        self._spread = 0
        # Making a candidate costs as much as judging it, and from one choice to the next few of them change.
        self._known: dict[int, _Known] = {}

    def choose(self, wanted: SelectionRequest, tried: Tried) -> Choice:
        """Leave out accounts that refused; those that were out of reach come last, since others may be fine.

        A preferred account that is clearly worse than others comes after them.
        """
        self._spread += 1
        candidates = self._candidates()
        for excluded in (tried.refused | tried.unreachable, tried.refused):
            request = replace(wanted, excluded={**wanted.excluded, **excluded})
            now = self._clock.wall()
            choice = choose(candidates, request, now, spread=self._spread, strategy=self._strategy)
            if choice.ranked or not tried.unreachable:
                break
        return self._eased(choice, wanted.preferred)

    def _eased(self, choice: Choice, preferred: int | None) -> Choice:
        if preferred is None or choice.ranked[:1] != (preferred,):
            return choice
        used = {each: self._health.quotas.get(each).used_percent(choice.now) for each in choice.ranked}
        others = choice.ranked[1:]
        if stays(used[preferred], (used[each] for each in others)):
            return choice
        better = [each for each in others if is_clearly_better(used[each])]
        return replace(choice, ranked=(*better, preferred, *(each for each in others if each not in better)))

    def _candidates(self) -> list[Candidate]:
        known = {account.id: self._look_at(account) for account in self._registry.accounts}
        self._known = known
        candidates = [each.candidate for each in known.values()]
        if not self._streams.shared:
            return candidates
        part = self._streams.part
        return [replace(each, cap=part(each.id, each.cap)) for each in candidates]

    def _look_at(self, account: AccountSnapshot) -> _Known:
        active = self._streams.active(account.id)
        circuit, quota = self._health.circuits.get(account.id), self._health.quotas.get(account.id)
        known = self._known.get(account.id)
        if known is not None and known.holds(account, active, circuit, quota):
            return known
        return _Known(account, active, circuit, quota, account.candidate(active, circuit, quota))
