"""Queries that are asked every second, with SQL that is made once.

Django makes the SQL of a query set anew each time it is evaluated. For a small table that takes many times as long as
the database's answer, and it is most of what a gateway at rest does.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Generic, TypeVar

from django.db import connection
from django.db.models import Model, QuerySet

M = TypeVar("M", bound=Model)


class Prepared(Generic[M]):
    """A query set without values that change. Ask it as often as needed, in any thread; it caches no rows."""

    def __init__(self, queryset: QuerySet[M], *columns: str) -> None:
        self._queryset = queryset
        self._columns = columns

    def rows(self) -> list[M]:
        """The rows as they are now; raises Django's database errors."""
        sql, parameters = self._statement
        return list(self._queryset.model._default_manager.raw(sql, parameters))

    def tuples(self) -> list[tuple[Any, ...]]:
        """The `columns` as the driver gives them, which is right for numbers and texts alone."""
        with connection.cursor() as cursor:
            cursor.execute(*self._statement)
            return list(cursor.fetchall())

    @cached_property
    def _statement(self) -> tuple[str, tuple[Any, ...]]:
        asked = self._queryset.values_list(*self._columns) if self._columns else self._queryset
        return asked.query.sql_with_params()
