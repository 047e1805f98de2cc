"""Programs that some tests drive and that no Python package brings along."""

from __future__ import annotations

import os
import shutil

import pytest

INSTALLATION = {"codex": "npm install -g @openai/codex"}


def require_program(name: str) -> str:
    """The path of a program. Without it the test is skipped, saying how to install it; with `CI` set it fails.

    A build that silently skips its most telling tests would look as good as one that passed them.
    """
    path = shutil.which(name)
    if path is not None:
        return path
    missing = f"{name} is not installed: {INSTALLATION[name]}"
    if os.environ.get("CI", "").lower() in ("", "0", "false"):
        pytest.skip(missing)
    pytest.fail(missing)
