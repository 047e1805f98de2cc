from __future__ import annotations

import logging

import pytest
from twisted.logger import LogLevel
from twisted.python.failure import Failure

from gateway.server.log import forward
from tests.gateway.server.harness import ServerProcess


async def test_python_warnings_are_still_shown_while_the_server_runs(server: ServerProcess) -> None:
    assert (await server.get("/warn")).json() == "warned"
    assert "a warning from the application" in server.log()


async def test_a_failure_in_a_callback_of_twisted_is_in_the_log(server: ServerProcess) -> None:
    assert (await server.get("/twisted_failure")).json() == "failed"
    assert "ERROR:gateway.server.log:" in server.log()
    assert "KeyError: 'a missing key'" in server.log()


def test_a_failure_in_twisted_reaches_pythons_log_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    failure = Failure(LookupError("in a callback"))
    forward({"log_level": LogLevel.critical, "log_format": "it failed", "log_failure": failure})
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "it failed")
    assert "in a callback" in caplog.text


@pytest.mark.parametrize("level", [LogLevel.debug, LogLevel.info, LogLevel.warn])
def test_what_is_no_failure_is_dropped(level: object, caplog: pytest.LogCaptureFixture) -> None:
    forward({"log_level": level, "log_format": "chatter"})
    assert caplog.records == []
