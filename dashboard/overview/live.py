"""Pages as they change: a WebSocket that sends the parts of a page that differ from what was sent last.

Only people who may see the overview may listen, and only pages of this site may connect. All listeners of a process
share one reader of the database, which reads only while somebody listens.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

import structlog
from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.auth.models import User
from django.contrib.sessions.backends.base import SessionBase
from django.http import HttpRequest, parse_cookie
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.module_loading import import_string

from dashboard.overview.home import FRAGMENTS, QUICK, Home, fragments
from dashboard.overview.series import DEFAULT_SPAN, SPANS, Span
from dashboard.processes import PROCESS_PAGES, Processes
from dashboard.site import may_come_in, may_watch
from gateway.database import DatabaseThreads

log = structlog.get_logger("dashboard.live")

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

# Seconds between two messages; every so many of them the slower parts of the page are looked at too.
PAUSE = 2.0
SLOW_EVERY = 5
# Seconds after which it is asked again whether somebody may still listen.
RECHECK = 30.0
PATH = "/admin/live/"
POLICY_VIOLATION, GOING_AWAY = 1008, 1001


def same_origin(origin: str | None, host: str | None, trusted: Iterable[str]) -> bool:
    """Whether a WebSocket was opened by a page of this site: its `Origin` is the `Host` it asked, or a trusted one."""
    if not origin or not host:
        return False
    return urlsplit(origin).netloc.lower() == host.lower() or origin in trusted


# Draws parts of a page; the slower ones only when told to.
Draw = Callable[[bool], dict[str, str]]


@dataclass
class Feed:
    """What one page shows now, read by one task for all who listen."""

    draw: Draw
    threads: DatabaseThreads
    parts: dict[str, str] = field(default_factory=dict)
    listeners: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    task: asyncio.Task[None] | None = None

    def join(self) -> None:
        """Somebody listens; `leave` when that is over."""
        self.listeners += 1
        if self.task is None:
            self.task = asyncio.ensure_future(self._run())

    def leave(self) -> None:
        self.listeners -= 1
        if not self.listeners and self.task is not None:
            self.task.cancel()
            self.task = None

    async def _run(self) -> None:
        turn = 0
        while True:
            try:
                parts = await self.threads.run(self.draw, turn % SLOW_EVERY == 0)
            except Exception:
                # The page stays as it is; whatever it was, the next look may succeed.
                log.exception("overview_not_rendered")
                parts = {}
            turn += 1
            async with self.changed:
                self.parts.update(parts)
                self.changed.notify_all()
            await asyncio.sleep(PAUSE)


def _draw_home(span: Span, everything: bool) -> dict[str, str]:
    return fragments(Home(span, timezone.now()), tuple(FRAGMENTS) if everything else QUICK)


def _draw_processes(name: str, everything: bool) -> dict[str, str]:
    return {name: render_to_string(PROCESS_PAGES[name], {"processes": Processes(timezone.now())})}


# What each page of the feed draws; its name is the query of its address.
DRAWS: Mapping[str, Draw] = {
    **{span.name: partial(_draw_home, span) for span in SPANS.values()},
    **{name: partial(_draw_processes, name) for name in PROCESS_PAGES},
}


class LiveFeed:
    """The ASGI application of the live pages of one process."""

    def __init__(self) -> None:
        self._threads: DatabaseThreads | None = None
        self._feeds: dict[str, Feed] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        cookies = parse_cookie(headers.get("cookie", ""))
        known = same_origin(headers.get("origin"), headers.get("host"), settings.CSRF_TRUSTED_ORIGINS)
        if scope["path"] != PATH or not known or not await self._run(_may_listen, cookies):
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
            return
        await send({"type": "websocket.accept"})
        wanted = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("page", [""])[0]
        feed = self._feed(wanted if wanted in DRAWS else DEFAULT_SPAN.name)
        feed.join()
        telling = asyncio.ensure_future(self._tell(feed, cookies, send))
        try:
            await _client_left(receive, telling)
        finally:
            feed.leave()
            telling.cancel()
            with suppress(asyncio.CancelledError):
                await telling

    def _feed(self, page: str) -> Feed:
        if page not in self._feeds:
            self._feeds[page] = Feed(DRAWS[page], self._database())
        return self._feeds[page]

    def _database(self) -> DatabaseThreads:
        if self._threads is None:
            self._threads = DatabaseThreads(1)
        return self._threads

    async def _run(self, ask: Callable[[dict[str, str]], bool], cookies: dict[str, str]) -> bool:
        return await self._database().run(ask, cookies)

    async def _tell(self, feed: Feed, cookies: dict[str, str], send: Send) -> None:
        """Send what differs from what this client was sent, until it may not listen any more."""
        sent: dict[str, str] = {}
        loop = asyncio.get_running_loop()
        check_at = loop.time() + RECHECK
        while True:
            new = {name: html for name, html in feed.parts.items() if sent.get(name) != html}
            if new:
                await send({"type": "websocket.send", "text": json.dumps(new)})
                sent.update(new)
            async with feed.changed:
                await feed.changed.wait()
            if loop.time() >= check_at:
                check_at = loop.time() + RECHECK
                if not await self._run(_may_listen, cookies):
                    await send({"type": "websocket.close", "code": POLICY_VIOLATION})
                    return


async def _client_left(receive: Receive, telling: asyncio.Task[None]) -> None:
    """Wait until the client has gone, or there is nothing more to tell it. What it says meanwhile is ignored."""
    while not telling.done():
        message = asyncio.ensure_future(receive())
        await asyncio.wait({message, telling}, return_when=asyncio.FIRST_COMPLETED)
        if not message.done():
            message.cancel()
            return
        if message.result()["type"] == "websocket.disconnect":
            return


def _may_listen(cookies: dict[str, str]) -> bool:
    """Whether the session in the cookies is of somebody who may see the overview now."""
    engine: Callable[[str | None], SessionBase] = import_string(f"{settings.SESSION_ENGINE}.SessionStore")
    request = HttpRequest()
    request.session = engine(cookies.get(settings.SESSION_COOKIE_NAME))
    user = get_user(request)
    return isinstance(user, User) and may_come_in(user, request.session) and may_watch(user)


application = LiveFeed()
