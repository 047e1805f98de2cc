"""Logging: structlog events, one line each, to standard error; readable on a terminal, JSON elsewhere."""

from __future__ import annotations

import logging
import sys

import structlog
import structlog.tracebacks

# These log each connection; what matters of it comes as our own events.
QUIET = ("websockets", "httpx", "httpcore", "daphne", "autobahn", "asyncio", "twisted")

# Without the frames' variables: among them are the headers and bodies of requests.
TRACEBACKS = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))


def configure() -> None:
    """Set up logging for the process; call it once, before anything logs."""
    readable = sys.stderr.isatty()
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    render = plain if readable else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.set_exc_info if readable else TRACEBACKS,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.captureWarnings(True)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.CRITICAL)
