"""The event loop under Twisted's reactor: uvloop where it is installed, asyncio's own elsewhere.

Twisted takes one reactor per process, and `daphne.server` installs one on asyncio's default loop if nobody did so
before. Therefore this has to run first; the package's `__init__` sees to that.
"""

from __future__ import annotations

import asyncio
import sys

from twisted.internet import asyncioreactor


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A uvloop event loop if the library is there, else asyncio's default one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def install_reactor() -> None:
    """Install the asyncio reactor for this process. Does nothing if a reactor is there already."""
    if "twisted.internet.reactor" not in sys.modules:
        asyncioreactor.install(new_event_loop())


def reactor_loop() -> asyncio.AbstractEventLoop:
    """The event loop that the installed reactor runs on.

    Raises `RuntimeError` if the reactor of this process is not an asyncio one.
    """
    reactor = sys.modules.get("twisted.internet.reactor")
    loop = getattr(reactor, "_asyncioEventloop", None)
    if not isinstance(loop, asyncio.AbstractEventLoop):
        raise RuntimeError(
            "The Twisted reactor of this process does not run on asyncio; import gateway.server before any "
            "other module that imports Twisted."
        )
    return loop
