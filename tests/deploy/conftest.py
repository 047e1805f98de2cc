"""The processes that nginx is put in front of."""

from __future__ import annotations

from tests.end_to_end.conftest import furnished, new_installation, simulator_process, template, upstream

__all__ = ["furnished", "new_installation", "simulator_process", "template", "upstream"]
