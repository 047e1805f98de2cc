"""Secrets in files: made once, readable by their owner alone, and complained about when unusable."""

from __future__ import annotations

import multiprocessing
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from gateway.secrets import SecretError, read, read_or_create

needs_permissions = pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")


def numbered() -> Callable[[], str]:
    """A maker of secrets that never makes the same one twice."""
    numbers = count(1)
    return lambda: f"secret-{next(numbers)}"


def test_a_secret_is_made_once_and_then_kept(tmp_path: Path) -> None:
    make = numbered()
    assert [read_or_create(tmp_path / "key", make) for _ in range(3)] == ["secret-1"] * 3
    assert read(tmp_path / "key") == "secret-1"


def test_only_the_owner_can_read_it_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        read_or_create(tmp_path / "key", numbered())
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_white_space_around_a_secret_is_not_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("\n  from-a-backup \n\n")
    assert read_or_create(tmp_path / "key", numbered()) == "from-a-backup"


@pytest.mark.parametrize("content", ["", "\n", "   \n"])
def test_an_empty_file_is_an_error_and_is_not_filled(tmp_path: Path, content: str) -> None:
    (tmp_path / "key").write_text(content)
    with pytest.raises(SecretError, match=r"key is empty; restore it from a backup"):
        read_or_create(tmp_path / "key", numbered())
    assert (tmp_path / "key").read_text() == content


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(SecretError, match=r"key cannot be read \(No such file"):
        read(tmp_path / "key")


def test_a_folder_that_does_not_exist_is_an_error_that_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(SecretError, match=r"cannot be written \(No such file.*GATEWAY_DATA_DIR"):
        read_or_create(tmp_path / "nowhere" / "key", numbered())


def test_a_folder_in_the_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "key").mkdir()
    with pytest.raises(SecretError, match=r"cannot be read \(Is a directory\)"):
        read_or_create(tmp_path / "key", numbered())


@needs_permissions
def test_a_file_of_somebody_else_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret")
    (tmp_path / "key").chmod(0)
    with pytest.raises(SecretError, match="Permission denied"):
        read_or_create(tmp_path / "key", numbered())


def test_threads_that_start_at_once_agree_on_one_secret(tmp_path: Path) -> None:
    for trial in range(50):
        path, make = tmp_path / f"key-{trial}", numbered()
        with ThreadPoolExecutor(8) as threads:
            secrets = list(threads.map(lambda _, path=path, make=make: read_or_create(path, make), range(8)))
        assert len(set(secrets)) == 1


def _own_secret(path: Path) -> str:
    return read_or_create(path, lambda: f"made-by-{os.getpid()}")


def test_processes_that_start_at_once_agree_on_one_secret(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as processes:
        secrets = processes.map(_own_secret, [tmp_path / "key"] * 16)
    assert len(set(secrets)) == 1
