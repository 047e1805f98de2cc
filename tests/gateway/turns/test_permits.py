"""Permits in virtual time: who waits, who is cancelled, who is woken, and that every place comes back."""

from __future__ import annotations

import asyncio
import gc
import random
from dataclasses import replace

import pytest

from gateway.conf import Tunables
from gateway.errors import InvalidBody, KeyLimited, Overloaded, Stopping
from gateway.keys import KeySnapshot
from gateway.metering.limits import KeyLimits, Limit, Span, Unit, window_of
from gateway.metering.meter import Meter
from gateway.metering.usage import Counts, Elsewhere
from gateway.turns.permits import Permit, Permits
from tests.support.virtual_loop import in_virtual_time, loop_clock

ADA, BO, CY, *OTHERS = (KeySnapshot(number, f"key-{number}", "", "") for number in range(1, 6))


def permits(turns: int = 1, size: int = 1000, wait: float = 30.0) -> Permits:
    tunables = Tunables(admission_turns=turns, admission_bytes=size, max_body_bytes=size, admission_wait=wait)
    clock = loop_clock()
    return Permits(tunables, clock, Meter(clock))


def waiting(permit: Permit) -> asyncio.Task[None]:
    """A task that waits for `permit` and releases it whatever happens, as a consumer does."""

    async def wait() -> None:
        with permit:
            await permit.granted()

    return asyncio.ensure_future(wait())


@in_virtual_time
async def test_a_free_place_is_granted_without_waiting() -> None:
    places = permits()
    with places.ask(ADA, 10) as permit:
        await permit.granted()
        assert (places.held, places.waiting) == (1, 0)
    assert permit.released
    assert (places.held, places.waiting) == (0, 0)


@in_virtual_time
async def test_a_freed_place_is_handed_to_who_waits_and_not_to_who_asks_next() -> None:
    places = permits()
    first, second = places.ask(ADA, 1), places.ask(BO, 1)
    first.release()
    third = places.ask(CY, 1)
    await second.granted()
    assert repr(places) == "<Permits 1 held, 1 waiting>"
    second.release()
    await third.granted()
    third.release()


@in_virtual_time
async def test_who_has_waited_too_long_is_told_when_to_come_back() -> None:
    places = permits(wait=30.0)
    began = asyncio.get_running_loop().time()
    with places.ask(ADA, 1):
        with places.ask(BO, 1) as permit, pytest.raises(Overloaded) as refused:
            await permit.granted()
        assert asyncio.get_running_loop().time() - began == pytest.approx(30.0)
        assert refused.value.code == "gateway_full"
        assert 1 <= refused.value.retry_after <= 60
        assert places.waiting == 0


@in_virtual_time
async def test_the_wait_counts_from_the_asking_and_not_from_the_end_of_the_body() -> None:
    places = permits(wait=30.0)
    with places.ask(ADA, 1), places.ask(BO, 1) as permit:
        await asyncio.sleep(29.0)
        with pytest.raises(Overloaded):
            await permit.granted()
        assert asyncio.get_running_loop().time() == pytest.approx(30.0)


@in_virtual_time
async def test_who_finds_even_the_queue_full_is_refused_at_once() -> None:
    places = permits(turns=1)
    with places.ask(ADA, 1), places.ask(BO, 1):
        with pytest.raises(Overloaded) as refused:
            places.ask(CY, 1)
        assert refused.value.code == "gateway_full"
        assert 1 <= refused.value.retry_after <= 60
        assert (places.held, places.waiting) == (1, 1)


@in_virtual_time
async def test_a_body_that_can_never_fit_is_an_invalid_body() -> None:
    places = permits(size=1000)
    with pytest.raises(InvalidBody, match="GATEWAY_ADMISSION_BYTES") as refused:
        places.ask(ADA, 1001)
    assert refused.value.code == "body_too_large"
    await asyncio.wait_for(places.all_back(), 1)


@in_virtual_time
async def test_a_body_that_grows_beyond_the_limits_is_refused_and_keeps_its_place() -> None:
    places = permits(turns=2, size=1000)
    with places.ask(ADA, 600), places.ask(BO, 0) as permit:
        permit.grow(400)
        with pytest.raises(Overloaded):
            permit.grow(401)
        with pytest.raises(InvalidBody):
            permit.grow(1001)
        assert places.held == 2


@in_virtual_time
async def test_a_waiter_that_is_cancelled_leaves_the_queue() -> None:
    places = permits()
    with places.ask(ADA, 1):
        task = waiting(places.ask(BO, 1))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert places.waiting == 0
    assert places.held == 0


@in_virtual_time
@pytest.mark.parametrize("cancel_first", [True, False])
async def test_a_place_granted_in_the_tick_of_a_cancellation_goes_on_to_the_next(cancel_first: bool) -> None:
    places = permits(turns=2)
    held, other = places.ask(ADA, 1), places.ask(ADA, 1)
    leaving, staying = waiting(places.ask(BO, 1)), waiting(places.ask(CY, 1))
    await asyncio.sleep(0)
    for strike in (leaving.cancel, held.release)[:: 1 if cancel_first else -1]:
        strike()
    await asyncio.wait({leaving, staying})
    assert leaving.cancelled()
    assert staying.exception() is None
    other.release()
    assert (places.held, places.waiting) == (0, 0)


@in_virtual_time
async def test_a_place_granted_in_the_tick_of_the_timeout_is_not_lost() -> None:
    places = permits(wait=30.0)
    held = places.ask(ADA, 1)
    task = waiting(places.ask(BO, 1))
    asyncio.get_running_loop().call_at(30.0, held.release)
    await asyncio.wait({task})
    await asyncio.wait_for(places.all_back(), 1)
    assert (places.held, places.waiting) == (0, 0)


@in_virtual_time
async def test_releasing_twice_gives_one_place_back() -> None:
    places = permits(turns=2)
    first, second = places.ask(ADA, 1), places.ask(BO, 1)
    first.release()
    first.release()
    assert places.held == 1
    second.release()


@in_virtual_time
async def test_a_gateway_that_stops_refuses_who_waits_and_who_comes_and_keeps_who_runs() -> None:
    places = permits()
    running, waiter = places.ask(ADA, 1), places.ask(BO, 1)
    task = waiting(waiter)
    await asyncio.sleep(0)
    places.stop()
    with pytest.raises(Stopping) as refused:
        await task
    assert refused.value.retry_after == 2
    with pytest.raises(Stopping):
        places.ask(CY, 1)
    await running.granted()
    assert places.held == 1
    running.release()
    await asyncio.wait_for(places.all_back(), 1)


@in_virtual_time
async def test_a_stop_is_also_told_to_who_has_not_begun_to_wait_yet() -> None:
    places = permits()
    with places.ask(ADA, 1), places.ask(BO, 1) as permit:
        places.stop()
        with pytest.raises(Stopping):
            await permit.granted()


@in_virtual_time
async def test_a_waiter_that_never_asks_how_it_went_leaves_no_complaint_behind() -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    places = permits()
    with places.ask(ADA, 1):
        places.ask(BO, 1).release()
        with places.ask(CY, 1):
            places.stop()
    del places
    gc.collect()
    await asyncio.sleep(0)
    assert not complaints


@in_virtual_time
async def test_all_back_waits_for_the_last_place_and_the_last_waiter() -> None:
    places = permits()
    held, queued = places.ask(ADA, 1), places.ask(BO, 1)
    everybody = asyncio.ensure_future(places.all_back())
    for permit in (held, queued):
        await asyncio.sleep(1)
        assert not everybody.done()
        permit.release()
    await asyncio.wait_for(everybody, 1)


@in_virtual_time
async def test_a_thousand_random_lives_leave_every_place_free() -> None:
    places = permits(turns=4, size=100, wait=5.0)
    chance = random.Random(7)
    outcomes = {"granted": 0, "refused": 0, "cancelled": 0}
    most = 0

    async def live() -> None:
        nonlocal most
        await asyncio.sleep(chance.uniform(0, 60))
        with places.ask(chance.choice([ADA, BO, CY, *OTHERS]), chance.randint(0, 60)) as permit:
            await asyncio.sleep(chance.choice([0, 0.5]))
            await permit.granted()
            most = max(most, places.held)
            permit.grow(chance.randint(0, 60))
            await asyncio.sleep(chance.choice([0, 0, 1, 3]))

    async def strike(task: asyncio.Task[None]) -> None:
        await asyncio.sleep(chance.uniform(0, 65))
        task.cancel()

    lives = [asyncio.ensure_future(live()) for _ in range(1000)]
    strikes = [asyncio.ensure_future(strike(task)) for task in lives if chance.random() < 0.4]
    await asyncio.wait({*lives, *strikes})
    for task in lives:
        failure = None if task.cancelled() else task.exception()
        assert failure is None or isinstance(failure, Overloaded)
        outcomes["cancelled" if task.cancelled() else "refused" if failure else "granted"] += 1
    assert all(count > 50 for count in outcomes.values()), outcomes
    assert most == 4
    assert (places.held, places.waiting) == (0, 0)
    await asyncio.wait_for(places.all_back(), 1)


class Crowded:
    """Another process holds nothing: this one may hold one more than it holds, up to all."""

    def turns(self, limit: int, held: int) -> int:
        return min(limit, held + 1)

    def size(self, limit: int, held: int) -> int:
        return limit


@in_virtual_time
async def test_what_this_process_may_hold_grows_with_what_it_holds_before_the_next_news_of_others() -> None:
    clock = loop_clock()
    tunables = Tunables(admission_turns=3, admission_bytes=1000, max_body_bytes=1000)
    places = Permits(tunables, clock, Meter(clock), Crowded())
    places.share_changed()
    held = [places.ask(key, 1) for key in (ADA, BO, CY)]
    assert (places.held, places.waiting) == (3, 0)
    for permit in held:
        permit.release()


class TestConfirming:
    """What other processes have told since the permit was asked for."""

    def asked(self, limits: KeyLimits, others: Elsewhere) -> Permit:
        clock = loop_clock()
        meter = Meter(clock)
        permits = Permits(Tunables(), clock, meter)
        permit = permits.ask(replace(ADA, limits=limits), 1)
        meter.learn([ADA.id], others, 1.0)
        return permit

    @in_virtual_time
    async def test_a_limit_that_others_have_reached_meanwhile_refuses_the_turn(self) -> None:
        day = window_of(Span.DAY, loop_clock().wall())
        for unit, used in ((Unit.REQUESTS, Counts(5)), (Unit.TOKENS, Counts(0, 5))):
            limits = KeyLimits((Limit(unit, Span.DAY, 5),))
            with (
                self.asked(limits, Elsewhere({(ADA.id, day): used})) as permit,
                pytest.raises(KeyLimited, match="per day"),
            ):
                permit.confirm()

    @in_virtual_time
    async def test_turns_that_run_elsewhere_meanwhile_refuse_the_turn(self) -> None:
        with self.asked(KeyLimits(turns=2), Elsewhere(running={ADA.id: 2})) as permit:
            with pytest.raises(KeyLimited) as refused:
                permit.confirm()
            assert refused.value.code == "key_concurrent_turns"

    @in_virtual_time
    async def test_what_is_within_the_limits_goes_on(self) -> None:
        day = window_of(Span.DAY, loop_clock().wall())
        limits = KeyLimits((Limit(Unit.REQUESTS, Span.DAY, 5), Limit(Unit.TOKENS, Span.DAY, 5)), turns=2)
        with self.asked(limits, Elsewhere({(ADA.id, day): Counts(4, 4)}, {ADA.id: 1})) as permit:
            permit.confirm()
