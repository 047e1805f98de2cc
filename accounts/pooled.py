"""The usage of several accounts as if they were one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from accounts.quota import ACCOUNT_FAMILY, SLOTS, Quota, Window

# The usual length of a window that does not tell its own, in minutes.
_USUAL = {"primary": 300, "secondary": 7 * 24 * 60}


@dataclass(frozen=True, slots=True)
class PooledWindow:
    """How full a window is on the average, and when the first account's part of it is reset (unix seconds)."""

    used_percent: float
    minutes: int
    resets_at: float


@dataclass(frozen=True, slots=True)
class Pooled:
    """What is known of the pool; a slot that no account has told is left out of `windows`."""

    windows: Mapping[str, PooledWindow]
    plan: str
    has_credits: bool
    unlimited: bool


def pooled(quotas: Sequence[Quota], now: float) -> Pooled:
    """The quotas of accounts, each with the same weight, as they count at `now` (unix seconds).

    An account whose window was reset since it was told counts as unused; one that has told nothing does not count.
    """
    windows: dict[str, PooledWindow] = {}
    for slot in SLOTS:
        told = [
            window
            for quota in quotas
            if (window := quota.windows.get(f"{ACCOUNT_FAMILY}/{slot}")) is not None and window.used_percent is not None
        ]
        if told:
            windows[slot] = _average(told, _USUAL[slot], now)
    plans = {quota.plan.name for quota in quotas if quota.plan is not None}
    return Pooled(
        windows,
        plan=plans.pop() if len(plans) == 1 else "",
        has_credits=any(quota.credits is not None and quota.credits.has_credits for quota in quotas),
        unlimited=any(quota.credits is not None and quota.credits.unlimited for quota in quotas),
    )


def _average(told: Sequence[Window], usual: int, now: float) -> PooledWindow:
    minutes = max((window.minutes or usual for window in told), default=usual)
    used = [window.used_percent or 0.0 if window.ends_at > now else 0.0 for window in told]
    resets = [window.ends_at for window in told if window.ends_at > now]
    return PooledWindow(sum(used) / len(used), minutes, min(resets, default=now + minutes * 60))
