"""A PostgreSQL server for tests, where the machine has one."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg
import pytest

URL = os.environ.get("TEST_POSTGRES_URL", "postgres://pointsman:pointsman@127.0.0.1:5432/postgres")


def require_postgres() -> str:
    """The URL of a database whose user may create databases.

    Without one the test is skipped, saying how to have one; with `CI` set it fails.
    """
    try:
        with psycopg.connect(URL.replace("postgres://", "postgresql://", 1), connect_timeout=3):
            return URL
    except psycopg.OperationalError as error:
        parts = urlsplit(URL)
        reason = (
            f"no PostgreSQL for {parts.username} at {parts.hostname}:{parts.port} ({type(error).__name__}): "
            "CREATE ROLE pointsman LOGIN CREATEDB PASSWORD 'pointsman', or set TEST_POSTGRES_URL"
        )
    if os.environ.get("CI", "").lower() in ("", "0", "false"):
        pytest.skip(reason)
    pytest.fail(reason)


@contextmanager
def temporary_database() -> Iterator[str]:
    """The URL of an empty database; it is dropped at the end, whoever is still connected."""
    url, name = require_postgres(), f"owners_{uuid.uuid4().hex[:8]}"
    server = url.replace("postgres://", "postgresql://", 1)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        try:
            yield f"{url.rpartition('/')[0]}/{name}"
        finally:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
