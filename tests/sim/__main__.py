"""`python -m tests.sim --seed N --turns M`: run a simulated world and say what came of it."""

from __future__ import annotations

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django

django.setup()

from tests.sim.command import main  # noqa: E402

raise SystemExit(main())
