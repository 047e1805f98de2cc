"""Streams per account in virtual time: hand-over, cancellation at every moment, and changes of the pool."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from gateway.errors import NoUsableAccount, Overloaded
from gateway.turns.slots import AccountStreams, Offer, Stream
from tests.support.virtual_loop import in_virtual_time, loop_clock

ADA, BO = 1, 2
CAP = 2


class Pool:
    """Accounts with a cap of streams each, offered to `AccountStreams` as the router does."""

    def __init__(self, *accounts: int, wait: float = 30.0) -> None:
        self.usable = list(accounts)
        self.streams = AccountStreams(loop_clock(), wait)

    def offer(self) -> Offer:
        if not self.usable:
            raise NoUsableAccount("Nobody is there.")
        ready = [account for account in self.usable if self.streams.active(account) < CAP]
        return Offer(ready, frozenset(self.usable) - frozenset(ready))

    def take(self, client: int = 1) -> asyncio.Task[Stream]:
        return asyncio.ensure_future(self.streams.take(client, self.offer))

    async def fill(self) -> list[Stream]:
        """Take every stream there is."""
        return [await self.take() for _ in range(CAP * len(self.usable))]

    async def waiting(self, client: int = 1) -> asyncio.Task[Stream]:
        """A task that has begun to wait for a stream."""
        task, before = self.take(client), self.streams.waiting
        await asyncio.sleep(0)
        assert self.streams.waiting == before + 1
        return task

    @property
    def idle(self) -> bool:
        return self.streams.waiting == 0 and not any(self.streams.active(account) for account in (ADA, BO))


@in_virtual_time
async def test_the_best_offered_account_is_taken() -> None:
    pool = Pool(BO, ADA)
    stream = await pool.take()
    assert stream.account_id == BO
    assert pool.streams.active(BO) == 1
    stream.release()
    assert pool.idle


@in_virtual_time
async def test_a_freed_stream_is_handed_to_who_waits_and_not_to_who_comes_next() -> None:
    pool = Pool(ADA)
    held = await pool.fill()
    waiter = await pool.waiting()
    held[0].release()
    assert pool.streams.active(ADA) == CAP
    newcomer = await pool.waiting()
    assert (await waiter).account_id == ADA
    (await waiter).release()
    for stream in (held[1], await newcomer):
        stream.release()
    assert pool.idle


@in_virtual_time
async def test_clients_get_freed_streams_in_turn() -> None:
    pool = Pool(ADA)
    held = await pool.fill()
    order: list[str] = []
    tasks = []
    for name, client in (("a1", 1), ("a2", 1), ("a3", 1), ("b1", 2)):
        tasks.append(await pool.waiting(client))
        tasks[-1].add_done_callback(lambda _, name=name: order.append(name))
    streams = [*held, *tasks]
    for each in streams:
        stream = each if isinstance(each, Stream) else await each
        stream.release()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert order == ["a1", "b1", "a2", "a3"]
    assert pool.idle


@in_virtual_time
async def test_a_waiter_gets_a_stream_of_an_account_it_may_use_and_of_no_other() -> None:
    pool = Pool(ADA, BO)
    held = await pool.fill()
    of_ada, of_bo = (next(stream for stream in held if stream.account_id == account) for account in (ADA, BO))
    bound = asyncio.ensure_future(pool.streams.take(1, lambda: Offer([], frozenset({BO}))))
    await asyncio.sleep(0)
    of_ada.release()
    await asyncio.sleep(0)
    assert not bound.done()
    of_bo.release()
    assert (await bound).account_id == BO


@in_virtual_time
async def test_who_waited_too_long_is_told_which_limit_and_when_to_come_back() -> None:
    pool = Pool(ADA, wait=30.0)
    held = await pool.fill()
    with pytest.raises(Overloaded, match="GATEWAY_STREAMS_PER_ACCOUNT") as refused:
        await pool.take()
    assert asyncio.get_running_loop().time() == pytest.approx(30.0)
    assert refused.value.code == "account_streams_busy"
    assert 1 <= refused.value.retry_after <= 60
    assert pool.streams.waiting == 0
    for stream in held:
        stream.release()
    assert pool.idle


@in_virtual_time
async def test_a_change_of_the_pool_lets_everybody_choose_again() -> None:
    pool = Pool(ADA)
    held = await pool.fill()
    tasks = [await pool.waiting() for _ in range(3)]
    pool.usable = [ADA, BO]
    pool.streams.pool_changed()
    assert [(await task).account_id for task in tasks[:2]] == [BO, BO]
    assert pool.streams.waiting == 1
    held[0].release()
    assert (await tasks[2]).account_id == ADA


@in_virtual_time
async def test_what_the_new_choice_raises_comes_through() -> None:
    pool = Pool(ADA)
    await pool.fill()
    task = await pool.waiting()
    pool.usable = []
    pool.streams.pool_changed()
    with pytest.raises(NoUsableAccount):
        await task
    assert pool.streams.waiting == 0


@in_virtual_time
async def test_choosing_again_does_not_begin_the_wait_anew() -> None:
    pool = Pool(ADA, wait=30.0)
    await pool.fill()
    task = await pool.waiting()
    asyncio.get_running_loop().call_at(20.0, pool.streams.pool_changed)
    with pytest.raises(Overloaded):
        await task
    assert asyncio.get_running_loop().time() == pytest.approx(30.0)


@in_virtual_time
async def test_a_waiter_that_is_cancelled_leaves_the_queue() -> None:
    pool = Pool(ADA)
    held = await pool.fill()
    task = await pool.waiting()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    for stream in held:
        stream.release()
    assert pool.idle


Strike = Callable[[Pool, list[Stream], asyncio.Task[Stream]], None]


def cancel(pool: Pool, held: list[Stream], task: asyncio.Task[Stream]) -> None:
    task.cancel()


def release(pool: Pool, held: list[Stream], task: asyncio.Task[Stream]) -> None:
    held.pop().release()


def change(pool: Pool, held: list[Stream], task: asyncio.Task[Stream]) -> None:
    pool.streams.pool_changed()


@in_virtual_time
@pytest.mark.parametrize(
    "strikes",
    [
        (cancel, release),
        (release, cancel),
        (cancel, change),
        (change, cancel),
        (cancel, change, release),
        (release, change, cancel),
        (change, release, cancel),
    ],
)
async def test_what_happens_in_one_tick_with_a_cancellation_loses_no_stream(strikes: tuple[Strike, ...]) -> None:
    pool = Pool(ADA)
    held = await pool.fill()
    task = await pool.waiting()
    for strike in strikes:
        strike(pool, held, task)
    await asyncio.wait({task})
    assert task.cancelled()
    while held:
        held.pop().release()
    assert pool.idle


@in_virtual_time
@pytest.mark.parametrize("strike", [release, change])
async def test_what_happens_in_the_tick_of_the_timeout_loses_no_stream(strike: Strike) -> None:
    pool = Pool(ADA, wait=30.0)
    held = await pool.fill()
    task = await pool.waiting()
    asyncio.get_running_loop().call_at(30.0, strike, pool, held, task)
    await asyncio.wait({task})
    if task.exception() is None:
        task.result().release()
    else:
        assert isinstance(task.exception(), Overloaded)
    while held:
        held.pop().release()
    assert pool.idle


@in_virtual_time
async def test_a_stream_that_a_cancelled_waiter_was_just_given_goes_on_to_the_next() -> None:
    pool = Pool(ADA)
    held = await pool.fill()
    leaving, staying = await pool.waiting(), await pool.waiting()
    held.pop().release()
    leaving.cancel()
    assert (await staying).account_id == ADA
    for stream in (*held, await staying):
        stream.release()
    assert pool.idle


@in_virtual_time
async def test_a_stream_freed_in_the_tick_in_which_its_first_waiter_leaves_goes_to_the_second() -> None:
    pool = Pool(ADA)
    held = await pool.fill()
    leaving, staying = await pool.waiting(), await pool.waiting()
    leaving.cancel()
    held.pop().release()
    assert (await staying).account_id == ADA
    for stream in (*held, await staying):
        stream.release()
    assert pool.idle


@in_virtual_time
async def test_releasing_twice_gives_one_stream_back() -> None:
    pool = Pool(ADA)
    first, second = await pool.fill()
    first.release()
    first.release()
    assert pool.streams.active(ADA) == 1
    second.release()


@in_virtual_time
async def test_the_time_to_come_back_is_between_a_second_and_a_minute() -> None:
    pool = Pool(ADA)
    assert pool.streams.retry_after() == 1
    for _ in range(100):
        stream = await pool.take()
        await asyncio.sleep(1000)
        stream.release()
    assert pool.streams.retry_after() == 60


@in_virtual_time
async def test_a_thousand_random_lives_leave_every_stream_free() -> None:
    pool = Pool(ADA, BO, wait=5.0)
    chance = random.Random(11)
    outcomes = {"granted": 0, "refused": 0, "cancelled": 0}

    async def live() -> None:
        await asyncio.sleep(chance.randrange(60))
        stream = await pool.streams.take(chance.randint(1, 5), pool.offer)
        try:
            assert pool.streams.active(stream.account_id) <= CAP
            await asyncio.sleep(chance.choice([0, 0, 1]))
        finally:
            stream.release()

    async def strike(task: asyncio.Task[None]) -> None:
        await asyncio.sleep(chance.randrange(60))
        task.cancel()

    async def change_the_pool() -> None:
        for _ in range(200):
            await asyncio.sleep(chance.choice([0, 0.5, 1]))
            pool.usable = chance.choice([[ADA], [BO], [ADA, BO], [BO, ADA]])
            pool.streams.pool_changed()

    lives = [asyncio.ensure_future(live()) for _ in range(1000)]
    strikes = [asyncio.ensure_future(strike(task)) for task in lives if chance.random() < 0.4]
    await asyncio.wait({*lives, *strikes, asyncio.ensure_future(change_the_pool())})
    for task in lives:
        failure = None if task.cancelled() else task.exception()
        assert failure is None or isinstance(failure, Overloaded), failure
        outcomes["cancelled" if task.cancelled() else "refused" if failure else "granted"] += 1
    assert all(count > 50 for count in outcomes.values()), outcomes
    assert pool.idle
