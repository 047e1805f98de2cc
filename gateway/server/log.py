"""Twisted's log, tied to Python's: failures go through, the rest is dropped."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping

from twisted.logger import LogLevel, formatEvent, globalLogBeginner
from twisted.python.failure import Failure

logger = logging.getLogger(__name__)


def forward(event: Mapping[str, object]) -> None:
    """Pass an event of level error or above on to Python's logging."""
    level = event.get("log_level")
    if level not in (LogLevel.error, LogLevel.critical):
        return
    failure = event.get("log_failure")
    exception = failure.value if isinstance(failure, Failure) else None
    logger.error("%s", formatEvent(event) or "Failure in the server.", exc_info=exception)


def route_twisted_log() -> None:
    """Send Twisted's failures to Python's logging. Call once per process, before the reactor runs."""
    show_warning = warnings.showwarning
    globalLogBeginner.beginLoggingTo([forward], redirectStandardIO=False, discardBuffer=True)
    # The call above redirects Python's warnings to Twisted's log, where nobody would see them.
    warnings.showwarning = show_warning
