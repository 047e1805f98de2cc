"""Programs and packages that some tests drive and that are not installed with the rest."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

INSTALLATION = {
    "codex": "npm install -g @openai/codex",
    "nginx": "apt-get install nginx",
    "node": "apt-get install nodejs npm",
    "openai": "npm install -g openai",
    "opencode": "npm install -g opencode-ai",
}


def require_program(name: str) -> str:
    """The path of a program. Without it the test is skipped, saying how to install it; with `CI` set it fails.

    A build that silently skips its most telling tests would look as good as one that passed them.
    """
    path = shutil.which(name)
    return path if path is not None else _missing(name, INSTALLATION[name])


def require_node_package(name: str) -> Path:
    """The folder of global Node packages, this one among them; else as `require_program`."""
    require_program("node")
    done = subprocess.run(["npm", "root", "-g"], capture_output=True, text=True, check=True)
    folder = Path(done.stdout.strip())
    return folder if (folder / name).is_dir() else _missing(name, INSTALLATION[name])


def require_module(name: str) -> ModuleType:
    """A package of the extra `clients`; else as `require_program`."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return _missing(name, "pip install -c constraints.txt -e '.[clients]'")


def _missing(name: str, how: str) -> NoReturn:
    missing = f"{name} is not installed: {how}"
    if os.environ.get("CI", "").lower() in ("", "0", "false"):
        pytest.skip(missing)
    pytest.fail(missing)
