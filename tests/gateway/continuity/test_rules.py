"""Which conversation a request belongs to."""

from __future__ import annotations

import json

import pytest

from gateway.continuity.rules import SessionKey, SessionKind, digest, session_key
from gateway.protocol.body import Body, parse_body


def body(**members: object) -> Body:
    return parse_body(json.dumps({"model": "gpt-5.5", "input": [], **members}).encode())


NAMES = {"thread-id": "t", "session-id": "s"}


def test_the_narrowest_name_counts():
    cached = body(prompt_cache_key="c")
    kinds = [
        session_key(1, headers, cached)
        for headers in (NAMES, {"session-id": "s"}, {"session_id": "s"}, {"thread-id": "", "session-id": ""})
    ]
    assert [key and key.kind for key in kinds] == [
        SessionKind.THREAD,
        SessionKind.SESSION,
        SessionKind.SESSION,
        SessionKind.CACHE,
    ]


def test_a_request_without_a_name_belongs_to_no_conversation():
    assert session_key(1, {}, body()) is None
    assert session_key(1, {"x-client-request-id": "t", "conversation_id": "c"}, body()) is None


def test_both_spellings_of_a_session_header_are_the_same_session():
    assert session_key(1, {"session-id": "s"}, body()) == session_key(1, {"session_id": "s"}, body())


def test_sub_agents_share_their_parents_cache_key_and_are_conversations_of_their_own():
    one, two = (session_key(1, {**NAMES, "thread-id": thread}, body(prompt_cache_key="p")) for thread in ("a", "b"))
    assert one != two


@pytest.mark.parametrize(
    ("client", "kind", "value"),
    [(2, SessionKind.THREAD, "t"), (1, SessionKind.SESSION, "t"), (1, SessionKind.THREAD, "u")],
)
def test_the_same_name_of_another_client_or_kind_is_another_conversation(client: int, kind: SessionKind, value: str):
    assert digest(client, kind, value) != digest(1, SessionKind.THREAD, "t")


def test_no_two_combinations_of_client_and_name_run_together():
    assert digest(1, SessionKind.THREAD, "1\nthread-id\nx") != digest(1, SessionKind.THREAD, "x")
    assert digest(11, SessionKind.THREAD, "x") != digest(1, SessionKind.THREAD, "1x")


def test_a_key_does_not_show_the_clients_own_id():
    key = session_key(1, {"thread-id": "the-clients-own-id"}, body())
    assert key is not None
    assert "the-clients-own-id" not in repr(key) + str(key)
    assert str(SessionKey(1, SessionKind.CACHE, "d")) == "prompt_cache_key:d"
