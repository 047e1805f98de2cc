"""Pure modules of the pool, and the most intricate others, are covered in every branch by their own tests alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


# Pure modules of the gateway that are covered so, too.
OTHERS = (
    "gateway.protocol.bound",
    "gateway.turns.admission",
    "gateway.turns.names",
    "gateway.metering.limits",
    "gateway.metering.price_file",
    "gateway.metering.prices",
    "gateway.metering.usage",
)


def pure_modules() -> list[str]:
    """The modules of `accounts` that the import contract calls pure, and `OTHERS`."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (pure,) = [contract for contract in contracts if "pure" in contract["name"]]
    return [*(module for module in pure["source_modules"] if module.startswith("accounts.")), *OTHERS]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("module", pure_modules())
def test_every_branch_is_taken_by_the_modules_own_tests(module: str, tmp_path: Path) -> None:
    source = Path(*module.split(".")).with_suffix(".py")
    tests = Path("tests", source.parent, f"test_{source.name}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["COVERAGE_FILE"] = str(tmp_path / "data")
    coverage = [sys.executable, "-m", "coverage"]
    # What measures time has no place here: watching every branch takes most of it.
    run = [
        *coverage,
        "run",
        "--branch",
        f"--include={source}",
        "-m",
        "pytest",
        "-n0",
        "-p",
        "no:cacheprovider",
        "-k",
        "not Cost",
        str(tests),
    ]
    ran = subprocess.run(run, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert ran.returncode == 0, ran.stdout[-2000:]
    report = tmp_path / "report.json"
    subprocess.run([*coverage, "json", "-o", str(report)], cwd=ROOT, env=environment, capture_output=True, check=True)
    found = json.loads(report.read_text())["files"][str(source)]
    assert (found["missing_lines"], found["missing_branches"]) == ([], [])
