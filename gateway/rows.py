"""Rows of keys, and the state of the database: synchronous functions for the database threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from gateway.keys import KeySnapshot, NewKey, new_key
from gateway.models import ApiKey, ModelAlias
from gateway.prepared import Prepared
from gateway.turns.names import Alias

KEYS = Prepared(ApiKey.objects.order_by())
ALIASES = Prepared(ModelAlias.objects.order_by(), "name", "model", "effort", "key_id")


def load_keys() -> Sequence[KeySnapshot]:
    """All keys, off ones included."""
    return [_snapshot(key) for key in KEYS.rows()]


def _snapshot(key: ApiKey) -> KeySnapshot:
    return KeySnapshot(
        id=key.id,
        name=key.name,
        lookup=key.lookup,
        digest=key.digest,
        enabled=key.enabled,
        accounts=frozenset(key.allowed_accounts) if key.allowed_accounts else None,
        models=tuple(key.allowed_models),
        limits=key.limits,
        migrates=key.migrate_conversations,
    )


def load_aliases() -> Sequence[Alias]:
    """All aliases of models."""
    return [Alias(*alias) for alias in ALIASES.tuples()]


def create_key(name: str) -> NewKey:
    """Store a new key; its text is in what is returned and nowhere else. Raises `IntegrityError` for a taken name."""
    key = new_key()
    ApiKey.objects.create(name=name, lookup=key.lookup, digest=key.digest)
    return key


def mark_used(used: Mapping[int, datetime]) -> None:
    """Note when keys were last used; that is no change that a gateway must notice."""
    for key_id, moment in used.items():
        ApiKey.objects.filter(id=key_id).update(last_used_at=moment)


def unapplied_migrations() -> int:
    """How many migrations the database lacks."""
    executor = MigrationExecutor(connection)
    return len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
