"""A limit that several replicas share: never exceeded by those who know the same, and never out of anybody's reach."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.replicas.shares import Use, allowance

limits = st.integers(1, 600)
uses = st.lists(st.integers(0, 600), min_size=1, max_size=8)


def allowances(limit: int, used: list[int]) -> list[int]:
    return [allowance(limit, mine, used[:at] + used[at + 1 :]) for at, mine in enumerate(used)]


@given(limits, st.integers(0, 600))
def test_a_replica_alone_has_all_of_it(limit: int, mine: int) -> None:
    assert allowance(limit, mine, []) == limit


@given(limits, uses)
def test_everybody_may_always_carry_something(limit: int, used: list[int]) -> None:
    assert min(allowances(limit, used)) >= 1


@given(limits, uses)
def test_nobody_grows_over_what_the_others_leave(limit: int, used: list[int]) -> None:
    for at, allowed in enumerate(allowances(limit, used)):
        others = sum(used) - used[at]
        assert allowed <= max(1, used[at], limit - others)


@given(limits, st.data())
def test_all_allowances_together_are_the_limit_at_the_most(limit: int, data: st.DataObject) -> None:
    """As long as together they hold no more than the limit, which is what it is about."""
    count = data.draw(st.integers(1, min(8, limit)))
    used: list[int] = []
    for _ in range(count):
        used.append(data.draw(st.integers(0, limit - sum(used))))
    grown = [max(mine, allowed) for mine, allowed in zip(used, allowances(limit, used), strict=True)]
    part = limit // count
    idle = sum(mine < part for mine in used)
    # A replica under its part may take what it kept ready, also while others still hold what they borrowed of it.
    assert sum(grown) <= limit + idle * max(1, part // 4)


def test_what_others_do_not_use_may_be_borrowed_but_for_a_quarter_of_their_part() -> None:
    assert allowances(8, [4, 0]) == [7, 1]
    assert allowances(256, [128, 0]) == [224, 32]
    assert allowances(8, [0, 0]) == [4, 4]
    assert allowances(9, [3, 3, 0]) == [4, 4, 1]


def test_who_lent_gets_it_back_as_the_borrower_ends() -> None:
    assert allowances(8, [7, 1]) == [6, 1]
    assert allowances(8, [6, 2]) == [5, 2]
    assert allowances(8, [5, 3]) == [4, 3]
    assert allowances(8, [4, 4]) == [4, 4]


def test_what_a_heartbeat_carries_is_read_back() -> None:
    use = Use(3, 4096, {1: 2, 7: 1}, {1: 5})
    assert Use.from_json(use.to_json()) == use
    assert Use.from_json({}) == Use()
