"""Pages of a table that may have millions of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.utils.functional import cached_property

if TYPE_CHECKING:
    # The stubs want a parameter that the class does not take at run time.
    ModelPaginator = Paginator[Model]
else:
    ModelPaginator = Paginator

MOST_ROWS = 2000


class BoundedPaginator(ModelPaginator):
    """Pages of a query set that counts no further than `most` rows: counting a ledger takes longer than reading it.

    What comes after that many rows is reached by a filter or the search.
    """

    most = MOST_ROWS

    @cached_property
    def count(self) -> int:
        """How many rows there are, `most` at the most."""
        rows = self.object_list
        if not isinstance(rows, QuerySet):
            raise TypeError(f"A bounded paginator takes a query set, not a {type(rows).__name__}.")
        return rows[: self.most].count()
