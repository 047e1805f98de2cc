import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from accounts.circuit import Circuit
from accounts.quota import Plan, Quota
from accounts.registry import AccountSnapshot, PoolChange, Registry, StateChange, Timing
from accounts.states import LONGEST_LIMIT, Kind, State
from tests.accounts.cast import ADA, BO, CY, HOUR, NOW


class Stopped(Exception):
    """Ends `run` in a test, at the tick where the script ends."""


def nothing() -> None:
    """A step in which nobody does anything."""


class Shop:
    """An in-memory store with its own clock. A query takes `latency` seconds of that clock."""

    def __init__(self, *accounts: AccountSnapshot) -> None:
        self.rows = {account.id: account for account in accounts}
        self.now = NOW
        self.latency = 0.0
        self.failure: Exception | None = None
        self.loads = self.loading = self.most_at_once = 0
        self.careful = True  # says so when nothing has changed
        self.written: list[StateChange] = []
        self.script: list[Callable[[], object]] = []
        self.during_load: Callable[[], object] = nothing
        self.during_write: Callable[[], object] = nothing
        self.registry = Registry(self.load, self.persist, Timing(1.0, self.clock, self.clock, self.sleep))

    def clock(self) -> float:
        return self.now

    async def load(self, known: Sequence[AccountSnapshot]) -> Sequence[AccountSnapshot] | None:
        self.loads += 1
        self.loading += 1
        self.most_at_once = max(self.most_at_once, self.loading)
        rows = tuple(self.rows.values())
        self.now += self.latency
        self.during_load()
        await asyncio.sleep(0)
        self.loading -= 1
        if self.failure:
            raise self.failure
        return None if self.careful and tuple(known) == rows else rows

    async def persist(self, change: StateChange) -> bool:
        if self.failure:
            raise self.failure
        self.written.append(change)
        during_write, self.during_write = self.during_write, nothing
        during_write()
        row = self.rows.get(change.account)
        if row is None or not change.applies_to(row):
            return False
        self.put(replace(row, state=change.state, state_reason=change.reason, state_until=change.until))
        return True

    def put(self, account: AccountSnapshot) -> None:
        """Store a row as a new revision."""
        stored = self.rows.get(account.id)
        self.rows[account.id] = replace(account, revision=stored.revision + 1 if stored else 1)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        if not self.script:
            raise Stopped
        self.script.pop(0)()

    async def ticks(self, *script: Callable[[], object]) -> None:
        """Run the registry; between two rounds take the next step of the script."""
        self.script = list(script)
        with pytest.raises(Stopped):
            await self.registry.run()

    def state(self, account: AccountSnapshot) -> State:
        shown = self.registry.get(account.id)
        assert shown is not None
        return shown.state


async def opened(*accounts: AccountSnapshot) -> Shop:
    shop = Shop(*accounts)
    await shop.registry.refresh()
    return shop


class TestSnapshot:
    def test_an_account_without_credentials_cannot_be_active(self):
        with pytest.raises(ValueError, match="needs_login"):
            replace(ADA, credentials=None)
        assert replace(CY, credentials=None).credentials is None

    def test_no_secret_and_no_account_id_is_printed(self):
        assert "access-of-ada" not in repr(ADA)
        assert "chatgpt-ada" not in repr(ADA)

    def test_it_stands_for_selection_with_its_load(self):
        candidate = BO.candidate(active=3)
        assert (candidate.id, candidate.name, candidate.kind, candidate.priority) == (
            2,
            "bo",
            Kind.CODEX,
            100,
        )
        assert (candidate.state, candidate.state_until) == (State.LIMITED, BO.state_until)
        assert (candidate.active, candidate.cap) == (3, 8)

    def test_it_stands_with_what_is_known_of_its_turns_and_its_usage(self):
        circuit, quota = Circuit(ejections=1), Quota(plan=Plan(NOW, "plus"))
        candidate = ADA.candidate(0, circuit, quota)
        assert (candidate.circuit, candidate.quota) == (circuit, quota)

    def test_a_limit_that_is_over_counts_as_active(self):
        assert BO.state_at(NOW) is State.LIMITED
        assert BO.state_at(NOW + 2 * HOUR) is State.ACTIVE


class TestLoading:
    async def test_accounts_are_found_by_id_and_in_order(self):
        shop = await opened(ADA, BO, CY)
        assert shop.registry.accounts == (ADA, BO, CY)
        assert shop.registry.get(2) == BO
        assert shop.registry.get(9) is None

    async def test_a_running_gateway_sees_a_change_within_two_seconds(self):
        shop = await opened(ADA)
        shop.latency = 0.4
        changed_at: list[float] = []
        seen_at: list[float] = []
        shop.registry.on_change(lambda change: seen_at.append(shop.now))

        def pause_just_after_the_rows_were_read() -> None:
            if not changed_at:
                changed_at.append(shop.now - shop.latency)
                shop.put(replace(ADA, state=State.PAUSED))

        shop.during_load = pause_just_after_the_rows_were_read
        await shop.ticks(nothing, nothing)
        assert shop.state(ADA) is State.PAUSED
        assert seen_at[0] - changed_at[0] < 2.0

    async def test_a_load_of_nothing_new_changes_and_tells_nothing(self):
        shop = await opened(ADA, BO)
        before = shop.registry.accounts
        told: list[PoolChange] = []
        shop.registry.on_change(told.append)
        await shop.registry.refresh()
        assert shop.registry.accounts is before
        assert told == []

    async def test_a_load_that_brings_the_same_rows_again_tells_nothing(self):
        shop = await opened(ADA, BO)
        told: list[PoolChange] = []
        shop.registry.on_change(told.append)
        shop.careful = False
        await shop.registry.refresh()
        assert shop.registry.accounts == (ADA, BO)
        assert told == []

    async def test_two_refreshes_do_not_load_at_once(self):
        shop = Shop(ADA)
        await asyncio.gather(shop.registry.refresh(), shop.registry.refresh())
        assert (shop.loads, shop.most_at_once) == (2, 1)

    async def test_the_first_load_that_fails_stops_the_start(self):
        shop = Shop(ADA)
        shop.failure = OSError("disk")
        with pytest.raises(OSError, match="disk"):
            await shop.registry.refresh()
        assert shop.registry.age is None


class TestFailure:
    async def test_a_failing_load_keeps_the_old_pool_and_shows_its_age(self):
        shop = await opened(ADA)
        shop.failure = OSError("disk")
        await shop.ticks(nothing, nothing)
        assert shop.registry.accounts == (ADA,)
        assert shop.registry.age == 3.0

    async def test_a_row_of_failures_is_reported_once_and_its_end_too_without_the_message(self):
        shop = await opened(ADA)
        shop.failure = OSError("row of ada@example.com")

        def recover() -> None:
            shop.failure = None

        with capture_logs() as logs:
            await shop.ticks(nothing, recover, nothing)
        assert [entry["event"] for entry in logs] == ["accounts_not_loaded", "accounts_not_loaded_is_over"]
        assert logs[0]["error"] == "OSError"
        assert "ada@example.com" not in str(logs)
        assert shop.registry.age == 1.0

    async def test_an_unchanged_pool_is_as_fresh_as_a_loaded_one(self):
        shop = await opened(ADA)
        shop.now += 5
        assert shop.registry.age == 5.0
        await shop.registry.refresh()
        assert shop.registry.age == 0.0


class TestListeners:
    async def test_they_hear_what_came_what_changed_and_what_went(self):
        shop = await opened(ADA, BO)
        told: list[PoolChange] = []
        shop.registry.on_change(told.append)
        shop.put(replace(ADA, state=State.PAUSED))
        del shop.rows[BO.id]
        shop.put(CY)
        await shop.registry.refresh()
        paused = shop.rows[ADA.id]
        assert told == [PoolChange(added=(CY,), changed=((ADA, paused),), removed=(BO,))]

    async def test_they_are_told_when_the_pool_shows_the_change_already(self):
        shop = await opened(ADA)
        seen: list[State] = []
        shop.registry.on_change(lambda change: seen.append(shop.state(ADA)))
        shop.registry.mark_needs_login(ADA.id, "401")
        assert seen == [State.NEEDS_LOGIN]

    async def test_a_defect_in_one_does_not_keep_the_change_from_the_next(self):
        shop = await opened(ADA)
        told: list[PoolChange] = []

        def defect(change: PoolChange) -> None:
            raise RuntimeError("bug")

        shop.registry.on_change(defect)
        shop.registry.on_change(told.append)
        with capture_logs() as logs:
            assert shop.registry.mark_needs_login(ADA.id, "401")
        assert len(told) == 1
        assert logs[0]["event"] == "account_listener_failed"


class TestMarks:
    async def test_a_limit_counts_at_once_and_is_written_by_the_next_round(self):
        shop = await opened(ADA)
        assert shop.registry.mark_limited(ADA.id, NOW + HOUR, "usage limit")
        assert shop.state(ADA) is State.LIMITED
        assert shop.rows[ADA.id].state is State.ACTIVE
        await shop.ticks()
        assert shop.rows[ADA.id].state is State.LIMITED
        assert shop.registry.accounts == (shop.rows[ADA.id],)
        assert shop.written == [StateChange(ADA.id, State.ACTIVE, State.LIMITED, "usage limit", NOW + HOUR)]

    async def test_the_turn_that_found_it_out_is_written_with_it(self):
        shop = await opened(ADA, BO)
        turn = uuid4()
        shop.registry.mark_limited(ADA.id, NOW + HOUR, "usage limit", by=turn)
        shop.registry.mark_needs_login(BO.id, "401", by=turn)
        await shop.ticks()
        assert [change.by for change in shop.written] == [turn, turn]

    async def test_a_mark_is_written_once(self):
        shop = await opened(ADA)
        shop.registry.mark_limited(ADA.id, NOW + HOUR, "usage limit")
        await shop.ticks(nothing, nothing)
        assert len(shop.written) == 1

    async def test_a_load_that_read_before_the_mark_does_not_undo_it(self):
        shop = await opened(ADA)
        shop.put(replace(ADA, priority=1))
        shop.during_load = lambda: shop.registry.mark_limited(ADA.id, NOW + HOUR, "usage limit")
        await shop.registry.refresh()
        assert shop.state(ADA) is State.LIMITED
        assert shop.registry.accounts[0].priority == 1

    async def test_a_load_that_read_before_the_mark_was_written_does_not_undo_it(self):
        shop = await opened(ADA)
        shop.put(replace(ADA, priority=1))
        shop.registry.mark_limited(ADA.id, NOW + HOUR, "usage limit")
        await asyncio.gather(shop.registry.refresh(), shop.registry.flush())
        assert shop.rows[ADA.id].state is State.LIMITED
        assert shop.state(ADA) is State.LIMITED

    async def test_a_mark_that_cannot_be_written_is_kept_and_tried_again(self):
        shop = await opened(ADA)
        shop.registry.mark_limited(ADA.id, NOW + HOUR, "usage limit")
        shop.failure = OSError("disk")

        def recover() -> None:
            shop.failure = None

        with capture_logs() as logs:
            await shop.ticks(nothing, recover)
        assert logs[0]["event"] == "accounts_not_saved"
        assert logs[0]["unsaved"] == 1
        assert shop.rows[ADA.id].state is State.LIMITED

    async def test_flush_raises_what_the_store_raises(self):
        shop = await opened(ADA)
        shop.registry.mark_needs_login(ADA.id, "401")
        shop.failure = OSError("disk")
        with pytest.raises(OSError, match="disk"):
            await shop.registry.flush()

    async def test_a_limit_that_ended_before_it_could_be_written_is_forgotten(self):
        shop = await opened(ADA)
        shop.registry.mark_limited(ADA.id, NOW + HOUR, "usage limit")
        shop.now += HOUR
        await shop.registry.flush()
        assert shop.written == []
        assert "0 unsaved" in repr(shop.registry)

    async def test_the_longer_of_two_limits_stands(self):
        shop = await opened(ADA)
        assert shop.registry.mark_limited(ADA.id, NOW + HOUR, "five hours")
        assert not shop.registry.mark_limited(ADA.id, NOW + HOUR / 2, "shorter")
        assert shop.registry.mark_limited(ADA.id, NOW + 2 * HOUR, "week")
        await shop.ticks()
        assert shop.rows[ADA.id].state_until == NOW + 2 * HOUR
        assert shop.rows[ADA.id].state_reason == "week"

    async def test_a_limit_that_is_over_can_be_marked_anew(self):
        shop = await opened(BO)
        shop.now += 3 * HOUR
        assert shop.registry.mark_limited(BO.id, shop.now + HOUR, "again")
        await shop.ticks()
        assert shop.rows[BO.id].state_until == NOW + 4 * HOUR

    async def test_a_limit_without_an_end_gets_none(self):
        shop = await opened(replace(BO, state_until=None))
        assert shop.registry.mark_limited(BO.id, NOW + HOUR, "usage limit")
        assert shop.registry.accounts[0].state_until == NOW + HOUR

    @pytest.mark.parametrize("until", [NOW, NOW - 1, float("-inf")])
    async def test_a_limit_in_the_past_changes_nothing(self, until):
        shop = await opened(ADA)
        assert not shop.registry.mark_limited(ADA.id, until, "late")
        assert shop.registry.accounts == (ADA,)

    @pytest.mark.parametrize("until", [1e18, float("inf")])
    async def test_a_reset_years_away_is_not_believed(self, until):
        shop = await opened(ADA)
        assert shop.registry.mark_limited(ADA.id, until, "nonsense")
        assert shop.registry.accounts[0].state_until == NOW + LONGEST_LIMIT

    async def test_a_limit_until_nan_is_a_defect_of_the_caller(self):
        shop = await opened(ADA)
        with pytest.raises(ValueError, match="NaN"):
            shop.registry.mark_limited(ADA.id, float("nan"), "nonsense")

    async def test_a_limited_account_can_turn_out_to_need_a_login(self):
        shop = await opened(ADA)
        shop.registry.mark_limited(ADA.id, NOW + HOUR, "usage limit")
        assert shop.registry.mark_needs_login(ADA.id, "401 after a refresh")
        await shop.ticks()
        assert shop.rows[ADA.id].state is State.NEEDS_LOGIN
        assert shop.rows[ADA.id].state_until is None

    @pytest.mark.parametrize("state", [State.PAUSED, State.DISABLED, State.NEEDS_LOGIN])
    async def test_the_word_of_the_operator_is_not_replaced(self, state):
        resting = replace(CY, state=state)
        shop = await opened(resting)
        assert not shop.registry.mark_limited(CY.id, NOW + HOUR, "usage limit")
        assert not shop.registry.mark_needs_login(CY.id, "401")
        assert shop.registry.accounts == (resting,)

    async def test_an_account_that_is_gone_cannot_be_marked(self):
        shop = await opened(ADA)
        assert not shop.registry.mark_limited(9, NOW + HOUR, "usage limit")
        assert not shop.registry.mark_needs_login(9, "401")

    async def test_a_pause_that_came_first_wins_over_the_mark(self):
        shop = await opened(ADA)
        shop.registry.mark_limited(ADA.id, NOW + HOUR, "usage limit")
        shop.put(replace(ADA, state=State.PAUSED))
        await shop.ticks()
        assert shop.state(ADA) is State.PAUSED
        assert shop.rows[ADA.id].state is State.PAUSED

    async def test_a_pause_seen_before_the_mark_is_written_drops_the_mark(self):
        shop = await opened(ADA)
        shop.registry.mark_limited(ADA.id, NOW + HOUR, "usage limit")
        shop.put(replace(ADA, state=State.PAUSED))
        await shop.registry.refresh()
        assert shop.state(ADA) is State.PAUSED
        await shop.registry.flush()
        assert shop.written == []

    async def test_a_new_sign_in_is_not_blamed_for_the_old_token(self):
        shop = await opened(ADA)
        shop.registry.mark_needs_login(ADA.id, "401")
        shop.put(ADA)
        await shop.ticks()
        assert shop.rows[ADA.id].state is State.ACTIVE
        assert shop.state(ADA) is State.ACTIVE

    async def test_the_mark_of_a_removed_account_goes_with_it(self):
        shop = await opened(ADA, BO)
        shop.registry.mark_needs_login(ADA.id, "401")
        del shop.rows[ADA.id]
        await shop.registry.refresh()
        await shop.registry.flush()
        assert shop.written == []

    async def test_a_mark_made_while_an_earlier_one_is_written_is_written_too(self):
        shop = await opened(ADA)
        shop.registry.mark_limited(ADA.id, NOW + HOUR, "first")
        shop.during_write = lambda: shop.registry.mark_limited(ADA.id, NOW + 2 * HOUR, "second")
        await shop.registry.flush()
        assert shop.rows[ADA.id].state_until == NOW + HOUR
        assert shop.registry.accounts[0].state_until == NOW + 2 * HOUR
        await shop.ticks()
        assert shop.rows[ADA.id].state_until == NOW + 2 * HOUR
        assert shop.registry.accounts == (shop.rows[ADA.id],)

    async def test_a_mark_made_while_an_earlier_one_fails_to_apply_goes_with_it(self):
        shop = await opened(ADA)
        shop.registry.mark_limited(ADA.id, NOW + HOUR, "first")
        shop.put(replace(ADA, state=State.PAUSED))
        shop.during_write = lambda: shop.registry.mark_limited(ADA.id, NOW + 2 * HOUR, "second")
        await shop.ticks(nothing)
        assert shop.rows[ADA.id].state is State.PAUSED
        assert shop.registry.accounts == (shop.rows[ADA.id],)

    async def test_an_account_that_goes_before_its_mark_is_written_is_gone(self):
        shop = await opened(ADA)
        shop.registry.mark_needs_login(ADA.id, "401")
        shop.rows.clear()
        await asyncio.gather(shop.registry.flush(), shop.registry.refresh())
        assert shop.registry.accounts == ()
        assert "0 unsaved" in repr(shop.registry)


class TestRepr:
    async def test_it_counts_the_pool_for_the_operator(self):
        shop = await opened(ADA, BO, CY)
        shop.now += 0.4
        assert repr(shop.registry) == "<Registry 1 active, 1 limited, 1 paused | 0 unsaved, loaded 0.4 s ago>"
        shop.registry.mark_needs_login(ADA.id, "401")
        assert "1 limited, 1 paused, 1 needs_login | 1 unsaved" in repr(shop.registry)

    def test_an_empty_one_says_so(self):
        assert repr(Shop().registry) == "<Registry no accounts | 0 unsaved, never loaded>"
