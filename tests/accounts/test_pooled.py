"""The usage of several accounts, told as one."""

from __future__ import annotations

import pytest

from accounts.pooled import PooledWindow, pooled
from accounts.quota import Credits, Plan, Quota, Window

NOW = 1_000_000.0
PRIMARY = "codex/primary"


def told(percent: float | None, resets_in: float = 600.0, minutes: int | None = 300) -> Quota:
    return Quota(windows={PRIMARY: Window(NOW, percent, minutes, NOW + resets_in)})


def test_nothing_told_is_nothing_known() -> None:
    known = pooled([Quota(), told(None)], NOW)
    assert (known.windows, known.plan, known.has_credits, known.unlimited) == ({}, "", False, False)


def test_accounts_count_alike_and_the_first_reset_counts() -> None:
    known = pooled([told(20.0, resets_in=900.0), told(60.0), Quota()], NOW)
    assert known.windows == {"primary": PooledWindow(40.0, 300, NOW + 600)}


def test_a_window_that_was_reset_counts_as_unused() -> None:
    known = pooled([told(80.0, resets_in=-1.0), told(50.0)], NOW)
    assert known.windows["primary"].used_percent == 25.0


def test_a_window_without_a_length_has_the_usual_one() -> None:
    known = pooled([told(80.0, resets_in=-1.0, minutes=None)], NOW)
    assert known.windows["primary"] == PooledWindow(0.0, 300, NOW + 300 * 60)


@pytest.mark.parametrize(("names", "plan"), [(["plus", "plus"], "plus"), (["plus", "pro"], "")])
def test_a_plan_is_named_if_it_is_everybodys(names: list[str], plan: str) -> None:
    assert pooled([Quota(plan=Plan(NOW, name)) for name in names], NOW).plan == plan


def test_credits_of_one_are_credits_of_the_pool() -> None:
    known = pooled([Quota(), Quota(credits=Credits(NOW, has_credits=True, unlimited=False))], NOW)
    assert (known.has_credits, known.unlimited) == (True, False)
