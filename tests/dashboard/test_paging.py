"""Counting stops at a bound."""

from __future__ import annotations

import pytest

from dashboard.paging import MOST_ROWS, BoundedPaginator
from gateway.models import Turn
from tests.dashboard.cast import turn


@pytest.mark.django_db
def test_a_short_table_is_counted_exactly() -> None:
    for _ in range(3):
        turn()
    assert BoundedPaginator(Turn.objects.all(), 2).num_pages == 2
    assert MOST_ROWS > 3


def test_what_is_no_query_set_is_refused() -> None:
    with pytest.raises(TypeError, match="takes a query set, not a list"):
        _ = BoundedPaginator([Turn(), Turn()], 2).count
