"""Permits: admission's book with futures around it."""

from __future__ import annotations

import asyncio
from types import TracebackType

from gateway.clock import Clock
from gateway.conf import Tunables
from gateway.errors import InvalidBody, Overloaded, Stopping
from gateway.turns.admission import AdmissionBook, Limits, State, Ticket, Verdict

NEVER = "The request body is larger than GATEWAY_ADMISSION_BYTES, so it can never be admitted."


class Permits:
    """Admits turns. `ask` for a permit, wait until it is `granted`, and `release` it when the work has ended."""

    def __init__(self, tunables: Tunables, clock: Clock) -> None:
        self._clock = clock
        self._wait = tunables.admission_wait
        self._book = AdmissionBook(Limits(tunables.admission_turns, tunables.admission_bytes))
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
    def waiting(self) -> int:
        return self._book.waiting

    def ask(self, client: int, size: int, key_limit: int | None = None) -> Permit:
        """A permit, granted or waiting, for a body of `size` bytes (as declared, or 0).

        Raises `InvalidBody` when it can never fit, `Overloaded` when even the queue is full, `Stopping`.
        """
        if self._stopping:
            raise Stopping("The gateway is stopping and takes no new turn; no upstream was contacted.", retry_after=2)
        ticket = Ticket(client, size, self._clock.monotonic(), key_limit)
        verdict = self._book.ask(ticket)
        self._refuse(verdict)
        if verdict is Verdict.QUEUED:
            self._waiters[ticket] = asyncio.get_running_loop().create_future()
        self._all_back.clear()
        return Permit(self, ticket)

    def stop(self) -> None:
        """Refuse whoever waits, and everybody new."""
        self._stopping = True
        for future in self._waiters.values():
            if not future.done():
                future.set_exception(Stopping("The gateway is stopping; no upstream was contacted.", retry_after=2))

    async def all_back(self) -> None:
        """Wait until no permit is held or waiting."""
        await self._all_back.wait()

    async def wait(self, ticket: Ticket) -> None:
        """Wait for a queued ticket, at most `ADMISSION_WAIT` from when it was asked for; raises `Overloaded`."""
        future = self._waiters.get(ticket)
        if future is None:
            return
        left = ticket.asked_at + self._wait - self._clock.monotonic()
        try:
            async with asyncio.timeout(max(0.0, left)):
                await future
        except TimeoutError:
            raise self._overloaded() from None

    def grow(self, ticket: Ticket, size: int) -> None:
        """Charge `ticket` up to `size` bytes; raises like `ask`."""
        self._refuse(self._book.grow(ticket, size))

    def give_back(self, ticket: Ticket) -> None:
        """Return `ticket` and wake those whose turn it is now."""
        future = self._waiters.pop(ticket, None)
        if future is not None:
            future.cancel()
        for granted in self._book.give_back(ticket, self._clock.monotonic()):
            waiter = self._waiters.pop(granted)
            if not waiter.done():
                waiter.set_result(None)
        if not self._book.held and not self._book.waiting:
            self._all_back.set()

    def _refuse(self, verdict: Verdict) -> None:
        if verdict is Verdict.NEVER:
            raise InvalidBody(NEVER, code="body_too_large")
        if verdict is Verdict.FULL:
            raise self._overloaded()

    def _overloaded(self) -> Overloaded:
        return Overloaded(
            "The gateway is full (GATEWAY_ADMISSION_TURNS, GATEWAY_ADMISSION_BYTES); no upstream was contacted.",
            code="gateway_full",
            retry_after=self._book.retry_after(),
        )


class Permit:
    """One turn's place. `release` may be called more than once; the first call counts."""

    def __init__(self, permits: Permits, ticket: Ticket) -> None:
        self._permits = permits
        self._ticket = ticket

    @property
    def released(self) -> bool:
        return self._ticket.state is State.GIVEN_BACK

    async def granted(self) -> None:
        """Wait for the place; raises `Overloaded` after the wait, `Stopping` at shutdown. Release it either way."""
        await self._permits.wait(self._ticket)

    def grow(self, size: int) -> None:
        """The body has `size` bytes by now; raises `Overloaded` or `InvalidBody` when they cannot be held."""
        self._permits.grow(self._ticket, size)

    def release(self) -> None:
        if not self.released:
            self._permits.give_back(self._ticket)

    def __enter__(self) -> Permit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
