"""Who may listen to the overview, and what they hear."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.test import Client

from dashboard.overview.home import FRAGMENTS
from dashboard.overview.live import PATH, LiveFeed, same_origin

HOST = "gw.example.org"


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        ("https://gw.example.org", "gw.example.org", True),
        ("http://GW.example.org:8045", "gw.example.org:8045", True),
        ("https://trusted.example.org", "10.0.0.1:8045", True),
        ("https://evil.example", "gw.example.org", False),
        ("https://gw.example.org.evil.example", "gw.example.org", False),
        ("null", "gw.example.org", False),
        (None, "gw.example.org", False),
    ],
)
def test_only_pages_of_this_site_may_connect(origin: str | None, host: str, same: bool) -> None:
    assert same_origin(origin, host, ["https://trusted.example.org"]) is same


class Socket:
    """A browser's WebSocket to the live feed."""

    def __init__(self, feed: LiveFeed, cookie: str, origin: str = f"https://{HOST}", path: str = PATH) -> None:
        headers = [(b"host", HOST.encode()), (b"origin", origin.encode()), (b"cookie", cookie.encode())]
        scope: dict[str, Any] = {"type": "websocket", "path": path, "headers": headers, "query_string": b"page=1h"}
        self._to: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._from: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._to.put_nowait({"type": "websocket.connect"})
        self.task = asyncio.ensure_future(feed(scope, self._to.get, self._from.put))

    async def hear(self) -> dict[str, Any]:
        async with asyncio.timeout(10):
            return await self._from.get()

    async def leave(self) -> None:
        self._to.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await self.task


def sign_in(**fields: Any) -> str:
    """The cookie of somebody who has just signed in."""
    user = User.objects.create(username="somebody", **fields)
    client = Client()
    client.force_login(user)
    return f"sessionid={client.cookies['sessionid'].value}"


@pytest.mark.django_db(transaction=True)
async def test_the_operator_hears_every_part_of_the_page_then_what_changes() -> None:
    cookie = await sync_to_async(sign_in)(is_staff=True, is_superuser=True)
    socket = Socket(LiveFeed(), cookie)
    assert (await socket.hear())["type"] == "websocket.accept"
    assert json.loads((await socket.hear())["text"]).keys() == FRAGMENTS.keys()
    await socket.leave()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("who", "where"),
    [
        ({"is_staff": False}, {}),
        ({"is_staff": True}, {}),
        ({"is_staff": True, "is_superuser": True, "is_active": False}, {}),
        ({"is_staff": True, "is_superuser": True}, {"origin": "https://evil.example"}),
        ({"is_staff": True, "is_superuser": True}, {"path": "/admin/other/"}),
    ],
    ids=["no staff", "no permission", "not active", "another site", "another path"],
)
async def test_nobody_else_is_let_in(who: dict[str, bool], where: dict[str, str]) -> None:
    cookie = await sync_to_async(sign_in)(**who)
    socket = Socket(LiveFeed(), cookie, **where)
    assert await socket.hear() == {"type": "websocket.close", "code": 1008}
    await socket.task


@pytest.mark.django_db(transaction=True)
async def test_nothing_is_read_when_nobody_listens() -> None:
    cookie = await sync_to_async(sign_in)(is_staff=True, is_superuser=True)
    feed = LiveFeed()
    sockets = [Socket(feed, cookie), Socket(feed, cookie)]
    for socket in sockets:
        await socket.hear()
    before = asyncio.all_tasks()
    for socket in sockets:
        await socket.leave()
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) < len(before) - 3
