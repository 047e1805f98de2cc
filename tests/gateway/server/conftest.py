"""One server with ordinary limits and one with tight ones, shared by all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.server.harness import ServerProcess


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as process:
        yield process.started()


@pytest.fixture(scope="session")
def tight() -> Iterator[ServerProcess]:
    """Short times and small sizes, so that a test reaches them quickly."""
    limits = ServerProcess(
        max_message_bytes=100_000,
        queue_messages=8,
        queue_bytes=200_000,
        ping_interval=0.2,
        ping_timeout=0.4,
        accept_timeout=0.3,
        close_timeout=0.3,
        application_close_timeout=0.4,
        stall_timeout=0.3,
        linger_timeout=0.6,
        linger_bytes=100_000,
        keep_alive_timeout=0.5,
    )
    with limits as process:
        yield process.started()
