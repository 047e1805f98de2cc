"""The database's file is looked at without touching what SQLite holds on it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.database import DatabaseFile

# What another process can do with the database at this moment.
ATTEMPT = """
import sqlite3, sys
other = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
try:
    other.execute(sys.argv[2])
    print("free")
except sqlite3.OperationalError as error:
    print(error)
"""
# What needs the lock that a writer has, with a rollback journal and with a log.
NEEDS = {"DELETE": "BEGIN IMMEDIATE", "WAL": "PRAGMA journal_mode=DELETE"}


def attempt(path: Path, statement: str) -> str:
    """What a process of its own is told."""
    asked = [sys.executable, "-c", ATTEMPT, str(path), statement]
    return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=20).stdout.strip()


@pytest.fixture(params=NEEDS)
def journal(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "database.sqlite3"


@pytest.fixture
def writer(path: Path, journal: str) -> Iterator[sqlite3.Connection]:
    """A connection of this process in the middle of a transaction."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA journal_mode={journal}")
        connection.execute("CREATE TABLE kept (number)")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO kept VALUES (1)")
        yield connection


def test_to_look_at_the_file_ends_no_lock_of_this_process(path: Path, writer: sqlite3.Connection, journal: str) -> None:
    assert attempt(path, NEEDS[journal]) == "database is locked"
    file = DatabaseFile(str(path))
    assert [file.problem(), file.problem()] == ["", ""]
    assert attempt(path, NEEDS[journal]) == "database is locked"
    writer.execute("COMMIT")


def test_a_file_that_was_replaced_emptied_or_deleted_is_noticed(path: Path) -> None:
    path.write_bytes(b"x" * 4096)
    file = DatabaseFile(str(path))
    assert file.problem() == ""
    path.write_bytes(b"")
    assert "emptied" in file.problem()
    other = path.with_suffix(".other")
    other.write_bytes(b"x" * 4096)
    other.rename(path)
    assert "replaced" in file.problem()
    path.unlink()
    assert "deleted" in file.problem()


def test_a_database_without_a_file_has_no_problem() -> None:
    assert DatabaseFile(None).problem() == ""
