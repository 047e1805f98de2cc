"""Counting stops at a bound."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dashboard.paging import MOST_ROWS, BoundedPaginator
from gateway.models import Turn
from tests.dashboard.cast import REPLICA, turn


@pytest.mark.django_db
def test_a_short_table_is_counted_exactly() -> None:
    for _ in range(3):
        turn()
    assert BoundedPaginator(Turn.objects.all(), 2).num_pages == 2
    assert MOST_ROWS > 3


@pytest.mark.django_db
def test_a_long_one_is_counted_to_the_bound_and_no_further() -> None:
    row = {"replica": REPLICA, "received_at": datetime.now(UTC), "route": "v1", "downstream": "sse"}
    Turn.objects.bulk_create(Turn(**row) for _ in range(12))
    paginator = BoundedPaginator(Turn.objects.all(), 5)
    paginator.most = 10
    assert (paginator.count, paginator.num_pages) == (10, 2)


def test_what_is_no_query_set_is_refused() -> None:
    with pytest.raises(TypeError, match="takes a query set, not a list"):
        _ = BoundedPaginator([Turn(), Turn()], 2).count
