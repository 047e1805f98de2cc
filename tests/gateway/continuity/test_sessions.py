"""Which account each conversation lives on, and for how long."""

from __future__ import annotations

from gateway.continuity import sessions
from gateway.continuity.rules import SessionKey, SessionKind, Strength
from gateway.continuity.sessions import WRITES_PER_TTL, Session, SessionTable

TTL = 100.0
SOON = TTL / WRITES_PER_TTL


def key(number: int = 1) -> SessionKey:
    return SessionKey(1, SessionKind.THREAD, str(number))


def test_a_conversation_is_found_where_it_was_carried_last():
    table = SessionTable(TTL)
    assert table.find(key(), 0) is None
    table.bind(key(), 1, Strength.SOFT, 0)
    table.bind(key(), 2, Strength.SOFT, 1)
    assert table.find(key(), 2) == Session(key(), 2, Strength.SOFT, 1)


def test_a_soft_tie_is_forgotten_after_its_time_since_it_was_last_used():
    table = SessionTable(TTL)
    table.bind(key(), 1, Strength.SOFT, 0)
    table.bind(key(), 1, Strength.SOFT, 50)
    assert table.find(key(), 50 + TTL)
    assert table.find(key(), 50 + TTL + 1) is None
    assert len(table) == 0


def test_a_hard_tie_outlives_that_time():
    table = SessionTable(TTL)
    table.bind(key(), 1, Strength.HARD, 0)
    assert table.find(key(), 1000 * TTL)


def test_a_hard_tie_to_the_same_account_is_never_weakened():
    table = SessionTable(TTL)
    table.bind(key(), 1, Strength.HARD, 0)
    table.bind(key(), 1, Strength.SOFT, 1)
    assert table.find(key(), 2) == Session(key(), 1, Strength.HARD, 1)


def test_a_free_turn_on_another_account_takes_the_conversation_along():
    table = SessionTable(TTL)
    table.bind(key(), 1, Strength.HARD, 0)
    table.bind(key(), 2, Strength.SOFT, 1)
    assert table.find(key(), 2) == Session(key(), 2, Strength.SOFT, 1)


def test_beyond_the_limit_the_least_recently_used_is_forgotten():
    table = SessionTable(TTL)
    for number in range(sessions.MAX_SESSIONS):
        table.bind(key(number), 1, Strength.HARD, 0)
    table.bind(key(0), 1, Strength.HARD, 1)
    table.bind(key(-1), 1, Strength.HARD, 1)
    assert len(table) == sessions.MAX_SESSIONS
    assert table.find(key(1), 2) is None
    assert table.find(key(0), 2)


def test_a_session_has_to_be_written_when_it_is_new_or_changed_and_seldom_otherwise():
    table = SessionTable(TTL)
    written = [
        table.bind(key(), account, strength, now)
        for account, strength, now in [
            (1, Strength.SOFT, 0),
            (1, Strength.SOFT, 1),
            (1, Strength.SOFT, SOON),
            (1, Strength.HARD, SOON + 1),
            (1, Strength.SOFT, SOON + 2),
            (2, Strength.SOFT, SOON + 3),
        ]
    ]
    assert [session and session.used_at for session in written] == [0, None, SOON, SOON + 1, None, SOON + 3]
    assert written[-1] == Session(key(), 2, Strength.SOFT, SOON + 3)


def test_what_the_store_holds_is_taken_over_unless_more_is_known_here():
    table = SessionTable(TTL)
    table.bind(key(1), 1, Strength.SOFT, 10)
    table.bind(key(2), 1, Strength.SOFT, 10)
    table.learn([Session(key(n), 2, Strength.HARD, used_at) for n, used_at in [(1, 9), (2, 11), (3, 1)]])
    found = [table.find(key(number), 20) for number in (1, 2, 3)]
    assert [session and session.account_id for session in found] == [1, 2, 2]


def test_what_was_learned_from_the_store_is_not_written_back_at_once():
    table = SessionTable(TTL)
    table.learn([Session(key(), 1, Strength.SOFT, 10)])
    assert table.bind(key(), 1, Strength.SOFT, 11) is None


def test_forgotten_sessions_are_gone_and_are_written_again_when_they_come_back():
    table = SessionTable(TTL)
    table.bind(key(), 1, Strength.HARD, 0)
    table.forget([key(), key(2)])
    assert table.find(key(), 1) is None
    assert table.bind(key(), 1, Strength.HARD, 1)


def test_what_was_left_behind_stays_with_the_conversation():
    table = SessionTable(TTL)
    table.replace(Session(key(), 2, Strength.SOFT, 0, frozenset({"a"})))
    assert table.bind(key(), 2, Strength.SOFT, 1) is None
    bound = table.bind(key(), 3, Strength.HARD, 2)
    assert bound == Session(key(), 3, Strength.HARD, 2, frozenset({"a"}))


def test_turn_state_that_was_left_is_evidence_again_only_where_it_is_shown_to_its_account():
    table = SessionTable(TTL)
    table.bind(key(), 1, Strength.HARD, 0)
    assert table.bind(key(), 1, Strength.LEFT, 1) == Session(key(), 1, Strength.LEFT, 1)
    assert table.find(key(), 1000 * TTL) == Session(key(), 1, Strength.LEFT, 1)
    assert table.bind(key(), 1, Strength.HARD, 2) == Session(key(), 1, Strength.HARD, 2)
