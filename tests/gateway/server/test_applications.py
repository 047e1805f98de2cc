from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from gateway.server.applications import Applications
from gateway.server.errors import ClientDisconnected
from gateway.server.flow import Inbox

SCOPE: Any = {"type": "http"}


class FakeConnection:
    """Records that its application ended."""

    def __init__(self) -> None:
        self.inbox = Inbox(max_messages=1, max_bytes=1)
        self.sent: list[object] = []
        self.ended = asyncio.Event()

    async def send(self, message: object) -> None:
        self.sent.append(message)

    def application_ended(self) -> None:
        assert not self.ended.is_set()
        self.ended.set()


async def test_an_application_gets_its_scope_receive_and_send() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send([scope, await receive()])

    connection = FakeConnection()
    connection.inbox.close({"type": "http.disconnect"})
    Applications(application, 1).start(connection, SCOPE)
    await asyncio.wait_for(connection.ended.wait(), 1)
    assert connection.sent == [[SCOPE, {"type": "http.disconnect"}]]


async def test_a_failure_is_logged_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def application(*_: Any) -> None:
        raise LookupError("broken")

    connection = FakeConnection()
    Applications(application, 1).start(connection, SCOPE)
    await asyncio.wait_for(connection.ended.wait(), 1)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "broken" in caplog.text


async def test_a_failure_before_the_first_await_is_reported_like_any_other() -> None:
    def application(*_: Any) -> Any:
        raise LookupError("not even a coroutine")

    connection = FakeConnection()
    Applications(application, 1).start(connection, SCOPE)
    await asyncio.wait_for(connection.ended.wait(), 1)


async def test_an_application_that_lets_the_disconnect_pass_has_not_failed(caplog: pytest.LogCaptureFixture) -> None:
    async def application(*_: Any) -> None:
        raise ClientDisconnected("gone")

    connection = FakeConnection()
    Applications(application, 1).start(connection, SCOPE)
    await asyncio.wait_for(connection.ended.wait(), 1)
    assert caplog.records == []


async def test_an_application_that_outstays_its_client_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    async def application(*_: Any) -> None:
        await asyncio.sleep(60)

    connection = FakeConnection()
    applications = Applications(application, 0.01)
    applications.start(connection, SCOPE)
    applications.client_left(connection)
    applications.client_left(connection)
    await asyncio.wait_for(connection.ended.wait(), 1)
    assert "did not end within 0.01 s" in caplog.text


async def test_an_application_that_ends_in_time_is_not_called_late(caplog: pytest.LogCaptureFixture) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await receive()

    connection = FakeConnection()
    applications = Applications(application, 0.01)
    applications.start(connection, SCOPE)
    await asyncio.sleep(0)
    connection.inbox.close({"type": "http.disconnect"})
    applications.client_left(connection)
    await asyncio.wait_for(connection.ended.wait(), 1)
    await asyncio.sleep(0.02)
    assert caplog.records == []


async def test_a_client_that_leaves_after_its_application_changes_nothing() -> None:
    async def application(*_: Any) -> None:
        return

    connection = FakeConnection()
    applications = Applications(application, 0.01)
    applications.start(connection, SCOPE)
    await asyncio.wait_for(connection.ended.wait(), 1)
    applications.client_left(connection)


async def test_cancelling_all_lets_each_clean_up_and_names_those_that_do_not_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cleaned: list[str] = []
    stubborn = asyncio.Event()

    async def application(scope: Any, *_: Any) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append(scope["type"])
            if scope["type"] == "websocket":
                await stubborn.wait()

    applications = Applications(application, 1)
    polite, other = FakeConnection(), FakeConnection()
    applications.start(polite, SCOPE)
    applications.start(other, {"type": "websocket"})  # type: ignore[arg-type, typeddict-item]
    await asyncio.sleep(0)
    await applications.cancel_all(0.02)
    assert sorted(cleaned) == ["http", "websocket"]
    assert polite.ended.is_set()
    assert "1 applications did not end within 0.02 s" in caplog.text
    stubborn.set()
    await asyncio.wait_for(other.ended.wait(), 1)


async def test_cancelling_nothing_returns_at_once() -> None:
    async def application(*_: Any) -> None:
        return

    await asyncio.wait_for(Applications(application, 1).cancel_all(60), 1)
