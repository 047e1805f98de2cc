"""A PostgreSQL server for tests, where the machine has one."""

from __future__ import annotations

import os
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
