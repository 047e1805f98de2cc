from __future__ import annotations

import pytest

from gateway.server.limits import ServerLimits


def test_the_defaults_fit_together() -> None:
    limits = ServerLimits()
    assert limits.header_bytes == 65536
    assert limits.max_message_bytes == 64 * 1024 * 1024


@pytest.mark.parametrize("name", ["ping_interval", "header_bytes", "close_timeout"])
def test_a_limit_of_zero_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be greater than zero"):
        ServerLimits(**{name: 0})


def test_a_queue_that_could_never_hold_the_largest_message_is_refused() -> None:
    with pytest.raises(ValueError, match="raise queue_bytes"):
        ServerLimits(max_message_bytes=101, queue_bytes=100)
