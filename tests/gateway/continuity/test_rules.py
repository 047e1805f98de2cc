"""Which conversation a request belongs to."""

from __future__ import annotations

import json

import pytest

from gateway.continuity.rules import (
    CLEARLY_BETTER,
    MOST_TIED,
    PRESSED,
    OwnersDiffer,
    Piece,
    SessionKey,
    SessionKind,
    agreed_owner,
    digest,
    evidence_keys,
    session_key,
    stays,
)
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


def file(file_id: str) -> dict[str, object]:
    return {"role": "user", "content": [{"type": "input_file", "file_id": file_id}]}


def test_what_is_an_accounts_by_itself_is_a_key_of_its_own():
    keys = evidence_keys(1, "ts", body(conversation={"id": "conv_1"}, input=[file("file_1"), file("file_1")]))
    assert [key.kind for key in keys] == [SessionKind.TURN_STATE, SessionKind.CONVERSATION, SessionKind.FILE]
    assert keys[1:] == evidence_keys(1, None, body(conversation="conv_1", input=[file("file_1")]))
    assert set(keys).isdisjoint(evidence_keys(2, "ts", body(conversation="conv_1", input=[file("file_1")])))


def test_turn_state_and_a_thread_of_the_same_text_are_two():
    (turn_state,) = evidence_keys(1, "t", body())
    assert turn_state.digest != digest(1, SessionKind.THREAD, "t")


def test_a_request_ties_a_bounded_number_of_things():
    keys = evidence_keys(1, "ts", body(input=[file(f"file_{number}") for number in range(500)]))
    assert len(keys) == MOST_TIED + 1


def test_one_owner_is_found_where_all_pieces_agree():
    assert agreed_owner([], None) is None
    assert agreed_owner([], 1) is None
    assert agreed_owner([Piece("file", None)], None) is None
    assert agreed_owner([Piece("file", 2), Piece("turn state", 2)], None) == 2


def test_a_piece_nobody_has_seen_is_of_the_account_that_the_conversation_is_tied_to():
    assert agreed_owner([Piece("file", None)], 1) == 1
    assert agreed_owner([Piece("file", None), Piece("turn state", 1)], 1) == 1


def test_proven_owners_win_over_a_conversations_name():
    assert agreed_owner([Piece("file", 2)], 1) == 2


@pytest.mark.parametrize("tied", [None, 1])
def test_pieces_that_disagree_have_no_owner_in_whatever_order_they_come(tied: int | None):
    for pieces in ([Piece("file", 2), Piece("turn state", 3)], [Piece("turn state", 3), Piece("file", 2)]):
        with pytest.raises(OwnersDiffer) as raised:
            agreed_owner(pieces, tied)
        assert set(raised.value.owners.values()) == {2, 3}


def test_a_piece_that_may_be_the_tied_accounts_disagrees_with_one_that_is_anothers():
    with pytest.raises(OwnersDiffer):
        agreed_owner([Piece("file", 2), Piece("item_reference", None)], 1)


@pytest.mark.parametrize(
    ("used", "others", "stay"),
    [
        (None, [0.0], True),
        (PRESSED - 0.1, [0.0], True),
        (PRESSED, [CLEARLY_BETTER - 0.1], False),
        (PRESSED, [None], False),
        (100.0, [CLEARLY_BETTER, 99.0], True),
        (100.0, [99.0, 10.0], False),
        (100.0, [], True),
    ],
)
def test_a_soft_tie_holds_unless_another_account_is_clearly_better(
    used: float | None, others: list[float | None], stay: bool
):
    assert stays(used, others) is stay
