"""What a target shows of itself."""

from __future__ import annotations

from tests.gateway.upstream.fakes import target


def test_a_target_shows_neither_its_address_nor_its_headers():
    assert repr(target(3)) == "<Target account 3>"
