"""Who made encrypted content."""

from __future__ import annotations

from gateway.continuity import sealed
from gateway.continuity.sealed import SealedContent


def test_the_maker_is_known_to_the_client_it_was_made_for_and_to_no_other() -> None:
    content = SealedContent()
    content.made(1, "a", 7)
    assert (content.maker(1, "a"), content.maker(2, "a"), content.maker(1, "b")) == (7, None, None)


def test_beyond_the_limit_the_oldest_are_forgotten() -> None:
    content = SealedContent()
    for number in range(sealed.MAX_SEALED + 1):
        content.made(1, str(number), 7)
    assert content.maker(1, "0") is None
    assert content.maker(1, "1") == 7
