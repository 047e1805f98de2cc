"""Insert-or-replace of many rows by one prepared statement.

The ledger writes two rows a turn, and building model instances and SQL for each costs more than everything else that
the gateway does for a turn. The statement is the same every time, so it is made once per database.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import UTC
from functools import cached_property
from operator import itemgetter
from typing import Any

from django.db import connection, models

# Where a value goes in a statement, as each driver wants it.
MARKS = {"sqlite": "?", "postgresql": "%s"}


class Upsert:
    """Writes rows of `model`; one that is there already, by its `unique` fields, gets the new values.

    Works on SQLite and PostgreSQL, which share the statement. Values are given by field name, for every field but an
    automatic key and `made_once`, which get their value when the row is inserted and keep it. A row whose field
    `newest` holds more than the new value stays as it is.
    """

    def __init__(
        self, model: type[models.Model], unique: Sequence[str], made_once: Sequence[str] = (), newest: str | None = None
    ) -> None:
        self._model = model
        self._unique = unique
        self._made_once = made_once
        self._newest = newest

    def write(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Insert or replace `rows`; raises Django's database errors."""
        parameters: list[tuple[Any, ...]] = [tuple(adapt(values) for adapt in self._adapters) for values in rows]
        connection.ensure_connection()
        # Straight to the driver: Django would rewrite the marks of this long statement each time.
        with connection.wrap_database_errors, closing(connection.connection.cursor()) as cursor:
            cursor.executemany(self._statement, parameters)

    @cached_property
    def _fields(self) -> list[models.Field[object, object]]:
        return [field for field in self._model._meta.concrete_fields if not isinstance(field, models.AutoField)]

    @cached_property
    def _statement(self) -> str:
        quote = connection.ops.quote_name
        columns = {field.name: quote(field.column or field.name) for field in self._fields}
        names = ", ".join(columns.values())
        key = ", ".join(columns[name] for name in self._unique)
        kept = {*self._unique, *self._made_once}
        changes = ", ".join(f"{column} = EXCLUDED.{column}" for name, column in columns.items() if name not in kept)
        marks = ", ".join([MARKS[connection.vendor]] * len(columns))
        table = quote(self._model._meta.db_table)
        only = "" if self._newest is None else " WHERE {0}.{1} <= EXCLUDED.{1}".format(table, columns[self._newest])
        return (
            f"INSERT INTO {table} ({names}) VALUES ({marks}) "  # noqa: S608
            f"ON CONFLICT ({key}) DO UPDATE SET {changes}{only}"
        )

    @cached_property
    def _adapters(self) -> list[Callable[[Mapping[str, object]], object]]:
        return [_adapter(field) for field in self._fields]


def _adapter(field: models.Field[object, object]) -> Callable[[Mapping[str, object]], object]:
    name = field.name
    if isinstance(field, models.JSONField):
        return lambda values: field.get_db_prep_save(values[name], connection)
    if connection.vendor == "sqlite" and isinstance(field, models.UUIDField):
        return lambda values: _hex(values[name])
    if connection.vendor == "sqlite" and isinstance(field, models.DateTimeField):
        return lambda values: _text(values[name])
    return itemgetter(name)


def _hex(value: Any) -> str | None:
    """A UUID as Django keeps it in SQLite."""
    return None if value is None else value.hex


def _text(value: Any) -> str | None:
    """A moment as Django keeps it in SQLite: in UTC, without saying so."""
    return None if value is None else str(value.astimezone(UTC).replace(tzinfo=None))
