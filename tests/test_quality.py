"""The code is clean by the tools' own account; `pyproject.toml` says what that means."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Kept between runs, so that only what has changed is looked at again.
CACHES = ROOT / "var" / "quality"

pytestmark = pytest.mark.timeout(300)


def assert_clean(tool: str, *arguments: str) -> None:
    """Run an installed tool on the whole project; what it complains about is the failure."""
    program = Path(sys.executable).parent / tool
    done = subprocess.run([program, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=290)
    assert done.returncode == 0, f"{tool} {' '.join(arguments)}\n{done.stdout}{done.stderr}"


def test_the_linter_finds_nothing() -> None:
    assert_clean("ruff", "check", "--quiet", "--cache-dir", str(CACHES / "ruff"), ".")


def test_every_file_is_formatted() -> None:
    assert_clean("ruff", "format", "--check", "--cache-dir", str(CACHES / "ruff"), ".")


# Without what an earlier run has left it takes a minute of a core.
@pytest.mark.slow
def test_the_types_fit() -> None:
    assert_clean("mypy", "--cache-dir", str(CACHES / "mypy"))


def test_the_imports_run_one_way() -> None:
    assert_clean("lint-imports", "--cache-dir", str(CACHES / "imports"))
