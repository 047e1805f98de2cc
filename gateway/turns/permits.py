"""Permits: admission's book with futures around it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Protocol

from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.errors import GatewayError, InvalidBody, KeyLimited, Overloaded, Stopping
from gateway.keys import KeySnapshot
from gateway.metering.meter import Meter
from gateway.metering.usage import Claim, Counts, Elsewhere
from gateway.metering.usage import State as ClaimState
from gateway.turns.admission import AdmissionBook, Limits, State, Ticket, Verdict

NEVER = "The request body is larger than GATEWAY_ADMISSION_BYTES, so it can never be admitted."


class Share(Protocol):
    """This process's part of limits that several share, given what it holds."""

    def turns(self, limit: int, held: int) -> int: ...

    def size(self, limit: int, held: int) -> int: ...


class Permits:
    """Admits turns. `ask` for a permit, wait until it is `granted`, and `release` it when the work has ended.

    A permit counts as a request of its key from the moment it is asked for, until it is released without having been
    settled.
    """

    def __init__(self, tunables: Tunables, clock: Clock, meter: Meter, share: Share | None = None) -> None:
        self._meter = meter
        meter.on_learned(self._learn)
        self._clock = clock
        self._wait = tunables.admission_wait
        self._limits = Limits(tunables.admission_turns, tunables.admission_bytes)
        self._largest = tunables.max_body_bytes
        self._share = share
        self._book = AdmissionBook(self._limits)
        self._waiters: dict[Ticket, asyncio.Future[None]] = {}
        self._all_back = asyncio.Event()
        self._all_back.set()
        self._stopping = False

    def __repr__(self) -> str:
        return f"<Permits {self._book.held} held, {self._book.waiting} waiting>"

    @property
    def held(self) -> int:
        return self._book.held

    @property
    def held_bytes(self) -> int:
        return self._book.held_bytes

    @property
    def waiting(self) -> int:
        return self._book.waiting

    def share_changed(self) -> None:
        """This process's part of the limits is another now; it always has room for the largest body."""
        changed = True
        while changed and self._share is not None:
            size = self._share.size(self._limits.size, self.held_bytes)
            part = Limits(self._share.turns(self._limits.turns, self.held), max(size, self._largest))
            granted = self._book.allow(part, self._clock.monotonic())
            self._wake(granted)
            # What this process may hold depends on what it holds.
            changed = bool(granted)

    def held_by(self, client: int) -> int:
        """Turns that a client (the id of its key) has running, those in other processes that are known included."""
        return self._book.held_by(client)

    def ask(self, key: KeySnapshot, size: int) -> Permit:
        """A permit, granted or waiting, for a body of `size` bytes (as declared, or 0).

        Raises `KeyLimited` when the key has used what it may, `InvalidBody` when the body can never fit, `Overloaded`
        when even the queue is full, `Stopping`.
        """
        if self._stopping:
            raise Stopping("The gateway is stopping and takes no new turn; no upstream was contacted.", retry_after=2)
        claim = self.claim(key)
        ticket = Ticket(key.id, size, self._clock.monotonic(), key.limits.turns)
        self.share_changed()
        verdict = self._book.ask(ticket)
        try:
            self._refuse(verdict)
        except GatewayError:
            self._meter.give_back(claim)
            raise
        if verdict is Verdict.QUEUED:
            self._waiters[ticket] = asyncio.get_running_loop().create_future()
        self._all_back.clear()
        return Permit(self, ticket, claim)

    def stop(self) -> None:
        """Refuse whoever waits, and everybody new."""
        self._stopping = True
        for future in self._waiters.values():
            if not future.done():
                future.set_exception(Stopping("The gateway is stopping; no upstream was contacted.", retry_after=2))
                # Retrieved, since its turn may be ending and never ask.
                future.exception()

    async def all_back(self) -> None:
        """Wait until no permit is held or waiting."""
        await self._all_back.wait()

    async def wait(self, ticket: Ticket) -> None:
        """Wait for a queued ticket, at most `ADMISSION_WAIT` from when it was asked for.

        Raises `KeyLimited` when it is the key's own turns that it has waited for, else `Overloaded`.
        """
        future = self._waiters.get(ticket)
        if future is None:
            return
        left = ticket.asked_at + self._wait - self._clock.monotonic()
        try:
            async with asyncio.timeout(max(0.0, left)):
                await future
        except TimeoutError:
            raise self._busy_key() if self._book.waits_for_itself(ticket) else self._overloaded() from None

    def confirm(self, ticket: Ticket, claim: Claim) -> None:
        """Compare with the key's limits what other processes have told since; raises `KeyLimited`."""
        self._meter.confirm(claim)
        if self._book.is_over_key_limit(ticket):
            raise self._busy_key()

    def settle(self, claim: Claim, spent: Counts) -> None:
        """Count what the turn has spent."""
        self._meter.settle(claim, spent)

    def claim(self, key: KeySnapshot) -> Claim:
        """Count a request of the key; raises `KeyLimited`."""
        return self._meter.claim(key)

    def uncount(self, claim: Claim) -> None:
        """Another process counts this request."""
        self._meter.give_back(claim)

    def grow(self, ticket: Ticket, size: int) -> None:
        """Charge `ticket` up to `size` bytes; raises like `ask`."""
        self._refuse(self._book.grow(ticket, size))

    def give_back(self, ticket: Ticket, claim: Claim) -> None:
        """Return `ticket`, and `claim` if it was not settled, and wake those whose turn it is now."""
        if claim.state is ClaimState.HELD:
            self._meter.give_back(claim)
        future = self._waiters.pop(ticket, None)
        if future is not None:
            future.cancel()
        self._wake(self._book.give_back(ticket, self._clock.monotonic()))
        self.share_changed()
        if not self._book.held and not self._book.waiting:
            self._all_back.set()

    def _learn(self, elsewhere: Elsewhere, keys: Iterable[int]) -> None:
        self._wake(self._book.learn(elsewhere.running, keys, self._clock.monotonic()))

    def _wake(self, granted: Iterable[Ticket]) -> None:
        for ticket in granted:
            waiter = self._waiters.pop(ticket)
            if not waiter.done():
                waiter.set_result(None)

    def _refuse(self, verdict: Verdict) -> None:
        if verdict is Verdict.NEVER:
            raise InvalidBody(NEVER, code="body_too_large")
        if verdict is Verdict.FULL:
            raise self._overloaded()

    def _busy_key(self) -> KeyLimited:
        return KeyLimited(
            "This key has as many turns running as it may have at once; no upstream was contacted.",
            code="key_concurrent_turns",
            retry_after=self._book.mean_hold(),
        )

    def _overloaded(self) -> Overloaded:
        return Overloaded(
            "The gateway is full (GATEWAY_ADMISSION_TURNS, GATEWAY_ADMISSION_BYTES); no upstream was contacted.",
            code="gateway_full",
            retry_after=self._book.retry_after(),
        )


class Permit:
    """One turn's place, and its claim on what the key may use.

    `settle` it when the turn has spent something; `release` may be called more than once, the first call counts.
    """

    def __init__(self, permits: Permits, ticket: Ticket, claim: Claim) -> None:
        self._permits = permits
        self._ticket = ticket
        self._claim = claim

    @property
    def released(self) -> bool:
        return self._ticket.state is State.GIVEN_BACK

    async def granted(self) -> None:
        """Wait for the place; raises `Overloaded` after the wait, `Stopping` at shutdown. Release it either way."""
        await self._permits.wait(self._ticket)

    def grow(self, size: int) -> None:
        """The body has `size` bytes by now; raises `Overloaded` or `InvalidBody` when they cannot be held."""
        self._permits.grow(self._ticket, size)

    def confirm(self) -> None:
        """Before the turn is sent: look at the key's limits once more; raises `KeyLimited`."""
        self._permits.confirm(self._ticket, self._claim)

    def hand_over(self) -> None:
        """Another replica is asked to carry the turn, and counts its request; the place here stays taken."""
        self._permits.uncount(self._claim)

    def take_back(self, key: KeySnapshot) -> None:
        """It did not, so the request counts here again; raises `KeyLimited`."""
        self._claim = self._permits.claim(key)

    def settle(self, spent: Counts) -> None:
        """The turn was sent and has spent this; once, before `release`."""
        self._permits.settle(self._claim, spent)

    def release(self) -> None:
        if not self.released:
            self._permits.give_back(self._ticket, self._claim)

    def __enter__(self) -> Permit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
