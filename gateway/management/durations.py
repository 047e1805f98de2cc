"""Durations as people type them: `30s`, `5m`, `6h`, `2d`."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from datetime import timedelta

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def duration(text: str) -> timedelta:
    """The duration that `text` says; raises `ArgumentTypeError` for anything else."""
    match = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is no duration; write for example 30m, 6h or 2d.")
    return timedelta(**{UNITS[match[2]]: int(match[1])})
