"""Which account stores which response."""

from __future__ import annotations

from gateway.continuity import responses
from gateway.continuity.responses import StoredResponses


def test_a_stored_response_is_known_to_the_client_it_was_made_for_and_to_no_other():
    stored = StoredResponses()
    stored.remember(1, "resp_1", 7)
    assert stored.owner(1, "resp_1") == 7
    assert stored.owner(2, "resp_1") is None
    assert stored.owner(1, "resp_2") is None


def test_the_newest_word_about_a_response_counts():
    stored = StoredResponses()
    stored.remember(1, "resp_1", 7)
    stored.remember(1, "resp_1", 8)
    assert stored.owner(1, "resp_1") == 8


def test_beyond_the_limit_the_oldest_are_forgotten():
    stored = StoredResponses()
    for number in range(responses.MAX_RESPONSES):
        stored.remember(1, f"resp_{number}", 7)
    stored.remember(1, "resp_0", 7)
    stored.remember(1, "resp_new", 7)
    assert stored.owner(1, "resp_1") is None
    assert stored.owner(1, "resp_0") == stored.owner(1, "resp_new") == 7
