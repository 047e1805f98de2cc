"""The arithmetic of admission: who holds how much, who may come in, who waits. Pure.

A `Ticket` is asked for once, granted or queued or refused, perhaps grown, and given back once. Places are handed
over: what a ticket gives back is granted to the tickets that wait before anybody new is looked at, so a freed place
is never raced for. `permits.py` puts futures around this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gateway.turns.fair import FairQueue


class Verdict(StrEnum):
    """The answer to a ticket. `full` names no place to wait either; `never` cannot fit however long it waits."""

    GRANTED = "granted"
    QUEUED = "queued"
    FULL = "full"
    NEVER = "never"


class State(StrEnum):
    WAITING = "waiting"
    HELD = "held"
    GIVEN_BACK = "given back"


@dataclass(eq=False, slots=True)
class Ticket:
    """One turn's claim: which client (the id of its key), how many bytes of body, and since when (seconds).

    The client may have `key_limit` turns at once, those in other processes included; `place` is the how-manieth of this
    process the ticket was when it was granted.
    """

    client: int
    size: int
    asked_at: float
    key_limit: int | None = None
    state: State = State.WAITING
    granted_at: float = 0.0
    place: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Turns and bytes that may be held, and again as many may wait."""

    turns: int
    size: int


class AdmissionBook:
    """Counts what is held and what waits. Every method returns at once and raises on misuse."""

    def __init__(self, limits: Limits) -> None:
        self._limits = self._part = limits
        self._waiting: FairQueue[Ticket] = FairQueue()
        self._per_client: Counter[int] = Counter()
        self._elsewhere: dict[int, int] = {}
        self._held = 0
        self._held_bytes = 0
        self._waiting_bytes = 0
        self._mean_hold = 1.0

    def __repr__(self) -> str:
        return f"<AdmissionBook {self._held} held ({self._held_bytes} bytes), {len(self._waiting)} waiting>"

    @property
    def held(self) -> int:
        """Tickets granted and not given back."""
        return self._held

    @property
    def held_bytes(self) -> int:
        """Bytes of the tickets that are held."""
        return self._held_bytes

    @property
    def waiting(self) -> int:
        """Tickets in the queue."""
        return len(self._waiting)

    def allow(self, part: Limits, now: float) -> list[Ticket]:
        """Grant no more than `part` of the limits from now on; the waiting tickets that are granted by that."""
        self._part = part
        return self._hand_over(now)

    def held_by(self, client: int) -> int:
        """Tickets of a client that are granted and not given back, here and elsewhere."""
        return self._all_of(client)

    def ask(self, ticket: Ticket) -> Verdict:
        """Grant, queue or refuse a new ticket. A queued one is granted by a later `give_back`."""
        if ticket.size > self._limits.size:
            return Verdict.NEVER
        if not self._waiting and self._fits(ticket):
            self._grant(ticket, ticket.asked_at)
            return Verdict.GRANTED
        too_many = len(self._waiting) >= self._limits.turns
        if too_many or self._waiting_bytes + ticket.size > self._limits.size:
            return Verdict.FULL
        self._waiting.push(ticket.client, ticket)
        self._waiting_bytes += ticket.size
        granted = self._hand_over(ticket.asked_at)
        return Verdict.GRANTED if ticket in granted else Verdict.QUEUED

    def grow(self, ticket: Ticket, size: int) -> Verdict:
        """Charge a held or waiting ticket up to `size` bytes in all; it keeps what it had when refused."""
        more = size - ticket.size
        if more <= 0:
            return Verdict.GRANTED
        if size > self._limits.size:
            return Verdict.NEVER
        if ticket.state is State.HELD:
            if self._held_bytes + more > self._part.size:
                return Verdict.FULL
            self._held_bytes += more
        elif ticket.state is State.WAITING:
            if self._waiting_bytes + more > self._limits.size:
                return Verdict.FULL
            self._waiting_bytes += more
        else:
            raise RuntimeError("a ticket that was given back cannot grow")
        ticket.size = size
        return Verdict.GRANTED

    def give_back(self, ticket: Ticket, now: float) -> list[Ticket]:
        """Return a ticket, held or waiting; the answer lists the waiting tickets that are granted by it.

        Raises `RuntimeError` for a ticket that was given back before.
        """
        if ticket.state is State.GIVEN_BACK:
            raise RuntimeError("a ticket was given back twice")
        if ticket.state is State.WAITING:
            self._waiting.remove(ticket.client, ticket)
            self._waiting_bytes -= ticket.size
        else:
            self._held -= 1
            self._held_bytes -= ticket.size
            self._per_client[ticket.client] -= 1
            self._mean_hold += 0.1 * (now - ticket.granted_at - self._mean_hold)
        ticket.state = State.GIVEN_BACK
        return self._hand_over(now)

    def learn(self, elsewhere: Mapping[int, int], clients: Iterable[int], now: float) -> list[Ticket]:
        """What other processes hold for `clients`; the answer lists the waiting tickets that are granted by it."""
        for client in clients:
            self._elsewhere.pop(client, None)
        self._elsewhere.update(elsewhere)
        return self._hand_over(now)

    def is_over_key_limit(self, ticket: Ticket) -> bool:
        """Whether a held ticket is one too many for its client, by what is known of other processes by now."""
        if ticket.key_limit is None:
            return False
        place = min(ticket.place, self._per_client[ticket.client])
        return place + self._elsewhere.get(ticket.client, 0) > ticket.key_limit

    def waits_for_itself(self, ticket: Ticket) -> bool:
        """Whether a ticket has no place because its client holds all that it may."""
        return ticket.key_limit is not None and self._all_of(ticket.client) >= ticket.key_limit

    def mean_hold(self) -> int:
        """Whole seconds, 1 to 60, for which places are held."""
        return max(1, min(60, round(self._mean_hold)))

    def retry_after(self) -> int:
        """Whole seconds, 1 to 60, until a newcomer can expect a place, from how long places are held."""
        expected = self._mean_hold * (len(self._waiting) + 1) / self._limits.turns
        return max(1, min(60, round(expected)))

    def _fits(self, ticket: Ticket) -> bool:
        if self._held >= self._part.turns or self._held_bytes + ticket.size > self._part.size:
            return False
        return ticket.key_limit is None or self._all_of(ticket.client) < ticket.key_limit

    def _all_of(self, client: int) -> int:
        return self._per_client[client] + self._elsewhere.get(client, 0)

    def _grant(self, ticket: Ticket, now: float) -> None:
        ticket.state = State.HELD
        ticket.granted_at = now
        self._held += 1
        self._held_bytes += ticket.size
        self._per_client[ticket.client] += 1
        ticket.place = self._per_client[ticket.client]

    def _hand_over(self, now: float) -> list[Ticket]:
        granted = []
        while (ticket := self._waiting.take(self._fits)) is not None:
            self._waiting_bytes -= ticket.size
            self._grant(ticket, now)
            granted.append(ticket)
        return granted
