"""A day of usage windows in virtual time: what the upstream counts, and what the pool makes of what it is told."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from accounts.quota import Quotas
from accounts.readings import UNKNOWN_RESET, read_headers, read_refusal, read_usage
from accounts.selection import Candidate, SelectionRequest, Strategy, choose
from accounts.states import Kind, State
from tests.accounts.cast import HOUR, NOW

MINUTE = 60.0
DAY = 24 * HOUR
POLL = 15 * MINUTE
MIDNIGHT = NOW - 12 * HOUR
SPARK = "gpt-6-spark"


@dataclass
class Bucket:
    """A usage window as the upstream counts it: it begins with its first use and is empty again at its end."""

    size: int
    minutes: int
    used: int = 0
    resets_at: float = 0.0

    def at(self, now):
        if now >= self.resets_at:
            self.used, self.resets_at = 0, now + self.minutes * MINUTE
        return self

    def full(self, now):
        return now < self.resets_at and self.used >= self.size


@dataclass
class Upstream:
    """One account's upstream: the account's two windows, and one of a metered model."""

    plan: str = "plus"
    windows: dict[str, Bucket] = field(
        default_factory=lambda: {"primary": Bucket(120, 300), "secondary": Bucket(400, 10_080)}
    )
    spark: Bucket = field(default_factory=lambda: Bucket(8, 300))
    tells_resets: bool = True

    def refuses(self, now, model):
        return any(bucket.full(now) for bucket in self.windows.values()) or (model == SPARK and self.spark.full(now))

    def turn(self, now, model):
        """The error, None if the turn ran, and the headers of the answer."""
        if self.refuses(now, model):
            full = [bucket.resets_at for bucket in self.windows.values() if bucket.full(now)]
            headers = self.headers(now) | {"x-codex-active-limit": "premium" if full else "codex_bengalfox"}
            resets_at = max(full, default=self.spark.resets_at) if self.tells_resets else now - HOUR
            return {"type": "usage_limit_reached", "resets_at": resets_at}, headers
        for bucket in [*self.windows.values(), *([self.spark] if model == SPARK else [])]:
            bucket.at(now).used += 1
        return None, self.headers(now)

    def headers(self, now):
        if not self.tells_resets:
            return {"x-codex-primary-used-percent": "100", "x-codex-primary-reset-at": "nan"}
        told = {}
        for prefix, bucket in self.named(now):
            told |= {
                f"{prefix}-used-percent": str(100 * bucket.used / bucket.size),
                f"{prefix}-window-minutes": str(bucket.minutes),
                f"{prefix}-reset-at": str(bucket.resets_at),
            }
        return told

    def named(self, now):
        yield from ((f"x-codex-{slot}", bucket) for slot, bucket in self.windows.items() if now < bucket.resets_at)
        if now < self.spark.resets_at:
            yield "x-codex-bengalfox-primary", self.spark

    def usage(self, now):
        limited = self.refuses(now, "gpt-6")
        windows = {"primary_window": None, "secondary_window": None}
        for slot, bucket in self.windows.items():
            windows[f"{slot}_window"] = {
                "used_percent": 100 * bucket.used // bucket.size,
                "limit_window_seconds": bucket.minutes * 60,
                "reset_at": bucket.resets_at,
            }
        return {"plan_type": self.plan, "rate_limit": {"allowed": not limited, "limit_reached": limited, **windows}}

    def downgrade(self):
        self.plan, self.windows = "free", {"primary": Bucket(5, 10_080)}


class Day:
    """The pool's side: it sends turns where `choose` says, and learns from the answers alone."""

    def __init__(self, strategy):
        self.strategy = strategy
        # The third tells neither resets nor which limit it is about, and so has but one.
        untold = Upstream(tells_resets=False, spark=Bucket(10_000, 300))
        self.upstreams = {1: Upstream(), 2: Upstream(), 3: untold, 4: Upstream()}
        self.limits: dict[int, float] = {}
        self.quotas = Quotas()
        self.spread = 0
        self.turns = self.missed = 0
        # What was told of each limit, by account and by model (None for all models): the earliest time to ask again.
        self.told: dict[tuple[int, str | None], float] = {}
        self.asked_too_early: list[tuple[int, str, float]] = []
        # Since when an account that would have taken the turn has been passed over, and the longest time of that.
        self.idle_since: dict[tuple[int, str], float] = {}
        self.longest_idle = dict.fromkeys(self.upstreams, 0.0)

    def candidates(self):
        return [
            Candidate(
                id=account,
                name=f"account-{account}",
                kind=Kind.CODEX,
                priority=100,
                state=State.LIMITED if account in self.limits else State.ACTIVE,
                state_until=self.limits.get(account),
                active=0,
                cap=8,
                quota=self.quotas.get(account),
            )
            for account in self.upstreams
        ]

    def turn(self, now, model):
        self.spread += 1
        self.turns += 1
        choice = choose(
            self.candidates(), SelectionRequest(model=model), now, spread=self.spread, strategy=self.strategy
        )
        able = {account for account, upstream in self.upstreams.items() if not upstream.refuses(now, model)}
        for account in self.upstreams:
            if account not in able or account in choice.ranked:
                self.idle_since.pop((account, model), None)
            else:
                idle = now + MINUTE - self.idle_since.setdefault((account, model), now)
                self.longest_idle[account] = max(self.longest_idle[account], idle)
        if not any(self.send(account, now, model) for account in choice.ranked):
            self.missed += bool(able)

    def send(self, account, now, model):
        if now < max(self.told.get((account, None), 0.0), self.told.get((account, model), 0.0)):
            self.asked_too_early.append((account, model, now))
        error, headers = self.upstreams[account].turn(now, model)
        known = self.quotas.get(account)
        self.quotas.observe(account, read_headers(headers, now))
        if error is None:
            return True
        limit = read_refusal(error, headers, model, now, known)
        self.told[account, limit.model] = limit.until
        self.quotas.observe(account, limit.as_quota(now))
        if limit.model is None:
            self.limits[account] = limit.until
        return False

    def poll(self, now):
        for account, upstream in self.upstreams.items():
            usage = read_usage(upstream.usage(now), now)
            self.quotas.observe(account, usage.quota)
            if usage.until is not None:
                self.limits[account] = usage.until
            else:
                self.limits.pop(account, None)
                self.told.pop((account, None), None)

    def run(self):
        now = MIDNIGHT
        while now < MIDNIGHT + DAY:
            if (now - MIDNIGHT) % POLL == 0:
                self.poll(now)
            if now == MIDNIGHT + 9 * HOUR:
                self.upstreams[2].downgrade()
            if now == MIDNIGHT + 15 * HOUR:
                for bucket in self.upstreams[1].windows.values():
                    bucket.used = 0  # the upstream gives everybody a fresh start
            self.turn(now, SPARK if now % (5 * MINUTE) == 0 else "gpt-6")
            now += MINUTE


@pytest.fixture(scope="module", params=Strategy)
def day(request):
    day = Day(request.param)
    day.run()
    return day


def test_no_account_is_passed_over_that_its_upstream_would_let_work(day):
    # A fresh start and a new plan are seen by the next poll. Who tells no reset is asked again after a while.
    assert day.longest_idle[1] <= POLL
    assert day.longest_idle[2] <= POLL
    assert day.longest_idle[3] <= UNKNOWN_RESET
    assert day.longest_idle[4] == 0


def test_no_account_is_asked_before_the_time_that_it_was_told(day):
    assert day.told
    assert day.asked_too_early == []


def test_no_turn_is_refused_while_anybody_could_take_it(day):
    assert day.turns == 24 * 60
    assert day.missed == 0
