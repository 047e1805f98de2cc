"""First come first served within a client, clients in turn."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.turns.fair import FairQueue

ADA, BO, CY = 1, 2, 3

arrivals = st.lists(st.integers(1, 4), max_size=30)


def filled(clients: list[int]) -> FairQueue[tuple[int, int]]:
    """A queue of items (client, position), pushed in this order."""
    queue: FairQueue[tuple[int, int]] = FairQueue()
    for position, client in enumerate(clients):
        queue.push(client, (client, position))
    return queue


def drained(queue: FairQueue[tuple[int, int]]) -> list[tuple[int, int]]:
    items = []
    while (item := queue.take(lambda _: True)) is not None:
        items.append(item)
    return items


def test_one_turn_behind_a_hundred_of_another_client_waits_for_one() -> None:
    queue = filled([ADA] * 100 + [BO])
    assert [client for client, _ in drained(queue)][:3] == [ADA, BO, ADA]


@given(arrivals)
def test_within_a_client_nobody_overtakes(clients: list[int]) -> None:
    taken = drained(filled(clients))
    for client in set(clients):
        assert [item for item in taken if item[0] == client] == sorted(item for item in taken if item[0] == client)


@given(arrivals)
def test_an_item_waits_for_at_most_one_of_each_other_client_for_each_place_in_its_line(clients: list[int]) -> None:
    taken = drained(filled(clients))
    for index, item in enumerate(taken):
        place = sum(1 for other in taken[:index] if other[0] == item[0]) + 1
        before = Counter(other[0] for other in taken[:index])
        assert all(count <= place for count in before.values())


@given(arrivals)
def test_whatever_is_pushed_comes_out_once(clients: list[int]) -> None:
    queue = filled(clients)
    assert len(queue) == len(clients) == len(list(queue))
    assert sorted(drained(queue)) == sorted((client, position) for position, client in enumerate(clients))
    assert len(queue) == 0


def test_only_the_first_of_a_line_is_asked_whether_it_fits() -> None:
    queue = filled([ADA, ADA, BO])
    assert queue.take(lambda item: item != (ADA, 0)) == (BO, 2)
    assert queue.take(lambda item: item != (ADA, 0)) is None
    assert len(queue) == 2


def test_take_any_passes_over_what_waits_for_something_else_and_keeps_the_rest_in_order() -> None:
    queue = filled([ADA, ADA, ADA, BO])
    assert queue.take_any(lambda item: item == (ADA, 1)) == (ADA, 1)
    assert drained(queue) == [(BO, 3), (ADA, 0), (ADA, 2)]


def test_take_any_finds_nothing_where_nothing_fits() -> None:
    queue = filled([ADA, BO])
    assert queue.take_any(lambda _: False) is None
    assert len(queue) == 2


def test_a_client_that_was_served_goes_behind_the_others() -> None:
    queue = filled([ADA, ADA, BO, CY])
    assert queue.take(lambda _: True) == (ADA, 0)
    assert [client for client, _ in drained(queue)] == [BO, CY, ADA]


def test_an_item_that_leaves_is_not_taken() -> None:
    queue = filled([ADA, ADA])
    queue.remove(ADA, (ADA, 0))
    assert drained(queue) == [(ADA, 1)]


@pytest.mark.parametrize("client", [ADA, BO])
def test_removing_what_is_not_there_is_an_error(client: int) -> None:
    queue = filled([ADA])
    with pytest.raises(ValueError, match=r"line|not in"):
        queue.remove(client, (client, 7))
