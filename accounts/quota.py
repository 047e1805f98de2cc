"""How much of its usage windows an account has left.

Pure: the time is an argument, in unix seconds. Whatever `readings.py` has read is a `Quota`, and quotas are merged:
of two words about the same window the newer one counts, in whatever order they arrive.

A percentage is evidence for the choice between accounts and never blocks one: a window that is full may have been
reset, or be backed by credits. An account is blocked by a refusal alone, or by the usage endpoint that says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from accounts.states import LONGEST_LIMIT

# The family of limits that counts for all models; others belong to the models they meter.
ACCOUNT_FAMILY = "codex"
SLOTS = ("primary", "secondary")
# An upstream that invents a family for each answer must not fill the memory.
KEPT_WINDOWS = 16
KEPT_MODELS = 64
_ACCOUNT_WINDOWS = tuple(f"{ACCOUNT_FAMILY}/{slot}" for slot in SLOTS)


@dataclass(frozen=True, slots=True)
class Window:
    """One usage window as it was told at `seen_at`. `used_percent` None says that there is no such window."""

    seen_at: float
    used_percent: float | None = None
    minutes: int | None = None
    resets_at: float | None = None

    @property
    def ends_at(self) -> float:
        """When this word about the window is void: at its reset, or after its length when it names none."""
        if self.resets_at is not None:
            return self.resets_at
        return self.seen_at + (LONGEST_LIMIT if self.minutes is None else self.minutes * 60.0)


@dataclass(frozen=True, slots=True)
class Credits:
    """What can be used beyond the windows. `balance` is the upstream's own text."""

    seen_at: float
    has_credits: bool
    unlimited: bool
    balance: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan that the upstream names."""

    seen_at: float
    name: str


@dataclass(frozen=True, slots=True)
class ModelLimit:
    """The account may not use one model before `until`; it may use all others."""

    seen_at: float
    until: float


@dataclass(frozen=True, slots=True)
class Quota:
    """What is known of an account's usage. `windows` are named `family/slot`, `model_limits` by model."""

    windows: Mapping[str, Window] = field(default_factory=dict)
    credits: Credits | None = None
    plan: Plan | None = None
    model_limits: Mapping[str, ModelLimit] = field(default_factory=dict)

    def at(self, now: float) -> Quota:
        """What still counts at `now`: windows whose reset has come are unknown again, limits that ended are over."""
        return Quota(
            {name: window for name, window in self.windows.items() if window.ends_at > now},
            self.credits,
            self.plan,
            {model: limit for model, limit in self.model_limits.items() if limit.until > now},
        )

    def used_percent(self, now: float) -> float | None:
        """How full the fullest window of the account is, 0 to 100; None when no window is known."""
        fullest = None
        for name in _ACCOUNT_WINDOWS:
            window = self.windows.get(name)
            if window is None or window.used_percent is None or window.ends_at <= now:
                continue
            if fullest is None or window.used_percent > fullest:
                fullest = window.used_percent
        return fullest

    def limited_until(self, model: str | None, now: float) -> float | None:
        """When the account may use `model` again; None when it may now."""
        limit = None if model is None else self.model_limits.get(model)
        return None if limit is None or limit.until <= now else limit.until


NOTHING_KNOWN = Quota()

Told = TypeVar("Told", Window, Credits, Plan, ModelLimit)


def merge(one: Quota, other: Quota) -> Quota:
    """All that is known by either: the newest word about each window, the credits, the plan and each model.

    The order of merging does not matter, and merging twice changes nothing, so that several processes may keep
    what each of them has seen in one place.
    """
    windows = _newest(one.windows, other.windows)
    models = _newest(one.model_limits, other.model_limits)
    return Quota(
        dict(sorted(windows.items(), key=_window_rank)[-KEPT_WINDOWS:]),
        _newer(one.credits, other.credits),
        _newer(one.plan, other.plan),
        dict(sorted(models.items(), key=lambda item: (item[1].seen_at, item[0]))[-KEPT_MODELS:]),
    )


def _window_rank(item: tuple[str, Window]) -> tuple[bool, float, str]:
    name, window = item
    return name in _ACCOUNT_WINDOWS, window.seen_at, name


def _newest(one: Mapping[str, Told], other: Mapping[str, Told]) -> dict[str, Told]:
    newest = dict(one)
    for name, told in other.items():
        newest[name] = max(newest.get(name, told), told, key=_age)
    return newest


def _newer(one: Told | None, other: Told | None) -> Told | None:
    return max((each for each in (one, other) if each is not None), key=_age, default=None)


def _age(told: Window | Credits | Plan | ModelLimit) -> tuple[float, str]:
    # Two words of the same moment must be put in one order by all; which one is as good as the other.
    return told.seen_at, repr(told)


class Quotas:
    """What a process knows of the usage of its accounts, and what of that nobody has stored yet."""

    def __init__(self) -> None:
        self._known: dict[int, Quota] = {}
        self._unsaved: dict[int, Quota] = {}

    def get(self, account: int) -> Quota:
        """All that is known of `account`."""
        return self._known.get(account, NOTHING_KNOWN)

    def observe(self, account: int, quota: Quota) -> None:
        """An upstream has told something of `account`; it will be in `take_unsaved`."""
        if quota == NOTHING_KNOWN:
            return
        self.load(account, quota)
        self._unsaved[account] = merge(self._unsaved.get(account, NOTHING_KNOWN), quota)

    def load(self, account: int, quota: Quota) -> None:
        """Somebody else has stored this about `account`."""
        self._known[account] = merge(self.get(account), quota)

    def take_unsaved(self) -> dict[int, Quota]:
        """What was observed since the last call. Store it, and if that fails `observe` it again."""
        unsaved, self._unsaved = self._unsaved, {}
        return unsaved

    def keep(self, accounts: Collection[int]) -> None:
        """Forget all accounts but these: the others have left the pool."""
        self._known = {account: quota for account, quota in self._known.items() if account in accounts}
        self._unsaved = {account: quota for account, quota in self._unsaved.items() if account in accounts}
