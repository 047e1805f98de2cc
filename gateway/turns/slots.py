"""Streams per account: how many responses each account carries, and who waits for one of them.

A freed stream is handed to the first waiter (fair between clients) that may use the account, so it is never raced for.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.clock import Clock
from gateway.errors import Overloaded
from gateway.turns.fair import FairQueue


@dataclass(eq=False, slots=True)
class _Waiter:
    accounts: frozenset[int]
    future: asyncio.Future[int]


@dataclass(frozen=True, slots=True)
class Offer:
    """What a choice came to: accounts that can take a response now, best first, and those that are only full."""

    ready: Sequence[int]
    full: frozenset[int]


# This process's part of an account's limit: the account, the limit, and what is held of it here.
Share = Callable[[int, int, int], int]


class AccountStreams:
    """Counts streams; `take` one before a turn is routed, `release` it when the upstream work has ended."""

    def __init__(self, clock: Clock, wait: float) -> None:
        self._clock = clock
        self._wait = wait
        self._share: Share | None = None
        self._limits: dict[int, int] = {}
        self._active: Counter[int] = Counter()
        self._queue: FairQueue[_Waiter] = FairQueue()
        self._mean_hold = 1.0

    def active(self, account_id: int) -> int:
        """Responses that the account carries now."""
        return self._active[account_id]

    def use(self) -> Mapping[int, int]:
        """Responses by account."""
        return {account_id: count for account_id, count in self._active.items() if count}

    def share(self, share: Share | None) -> None:
        """This process's part of the limits has changed; None when it is alone. Everybody who waits chooses again."""
        self._share = share
        self.pool_changed()

    @property
    def shared(self) -> bool:
        """Whether other processes use the accounts too."""
        return self._share is not None

    def part(self, account_id: int, limit: int) -> int:
        """How many responses this process may let the account carry, of `limit` in all."""
        self._limits[account_id] = limit
        return limit if self._share is None else self._share(account_id, limit, self._active[account_id])

    @property
    def waiting(self) -> int:
        """Turns that wait for an account."""
        return len(self._queue)

    def by_account(self) -> Counter[int]:
        """Responses that each account carries now."""
        return +self._active

    def waiting_by_account(self) -> Counter[int]:
        """Turns that wait for each account; one that would take any of several counts for each."""
        return Counter(account for waiter in self._queue for account in waiter.accounts)

    async def take(self, client: int, choose: Callable[[], Offer]) -> Stream:
        """A stream on the best account that `choose` offers, waiting while all are full.

        `choose` is asked again when the pool changes; what it raises comes through. Raises `Overloaded` when no
        stream became free in time.
        """
        deadline = self._clock.monotonic() + self._wait
        while True:
            offer = choose()
            if offer.ready:
                return self._grant(offer.ready[0])
            granted = await self._queued(client, offer.full, deadline)
            if granted is not None:
                return granted

    async def _queued(self, client: int, accounts: frozenset[int], deadline: float) -> Stream | None:
        """Wait in line for one of `accounts`; None means that the pool changed and the choice must be made again."""
        waiter = _Waiter(accounts, asyncio.get_running_loop().create_future())
        self._queue.push(client, waiter)
        try:
            async with asyncio.timeout(max(0.0, deadline - self._clock.monotonic())):
                account_id = await waiter.future
        except TimeoutError:
            self._leave(client, waiter)
            raise Overloaded(
                "Every account carries GATEWAY_STREAMS_PER_ACCOUNT responses; no upstream was contacted.",
                code="account_streams_busy",
                retry_after=self.retry_after(),
            ) from None
        except asyncio.CancelledError:
            self._leave(client, waiter)
            raise
        return None if account_id == _CHOOSE_AGAIN else Stream(self, account_id, self._clock.monotonic())

    def pool_changed(self) -> None:
        """Accounts appeared, left or changed: everybody who waits chooses again."""
        while (waiter := self._queue.take_any(_stays)) is not None:
            waiter.future.set_result(_CHOOSE_AGAIN)

    def retry_after(self) -> int:
        """Whole seconds, 1 to 60, from how long streams are held and how many wait."""
        streams = max(1, self._active.total())
        return max(1, min(60, round(self._mean_hold * (self.waiting + 1) / streams)))

    def release(self, account_id: int, taken_at: float) -> None:
        """A stream has ended; hand it to the first waiter that can use it."""
        self._active[account_id] -= 1
        self._mean_hold += 0.1 * (self._clock.monotonic() - taken_at - self._mean_hold)
        if self.shared and self._active[account_id] >= self.part(account_id, self._limits.get(account_id, 1)):
            # Other processes use more of the account than before.
            return
        waiter = self._queue.take_any(lambda waiter: account_id in waiter.accounts and _stays(waiter))
        if waiter is not None:
            self._active[account_id] += 1
            waiter.future.set_result(account_id)

    def _grant(self, account_id: int) -> Stream:
        self._active[account_id] += 1
        return Stream(self, account_id, self._clock.monotonic())

    def _leave(self, client: int, waiter: _Waiter) -> None:
        """A waiter gives up; a stream that was handed to it in the same moment goes on to the next."""
        future = waiter.future
        if future.done() and not future.cancelled() and future.exception() is None:
            if future.result() != _CHOOSE_AGAIN:
                self.release(future.result(), self._clock.monotonic())
        else:
            self._queue.remove(client, waiter)


_CHOOSE_AGAIN = -1


def _stays(waiter: _Waiter) -> bool:
    """Whether somebody still waits; a waiter that was cancelled takes itself out when its task runs next."""
    return not waiter.future.done()


class Stream:
    """One response's place on an account. `release` may be called more than once; the first call counts."""

    __slots__ = ("_released", "_streams", "_taken_at", "account_id")

    def __init__(self, streams: AccountStreams, account_id: int, taken_at: float) -> None:
        self._streams = streams
        self.account_id = account_id
        self._taken_at = taken_at
        self._released = False

    def release(self) -> None:
        if not self._released:
            self._released = True
            self._streams.release(self.account_id, self._taken_at)
