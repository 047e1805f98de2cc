"""Text that comes in pieces ends at a stop sequence, wherever the pieces are cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.chat.content import BETWEEN_MESSAGES, Content

TEXT = st.text("ab\n", max_size=30)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=4).map(tuple)


def shown(content: Content, *pieces: str, message: int = 0) -> str:
    return "".join(content.add(message, piece) for piece in pieces) + content.rest()


def test_without_stop_sequences_everything_is_shown_at_once():
    content = Content()
    assert content.add(0, "hello") == "hello"
    assert content.rest() == ""


def test_text_ends_where_a_stop_sequence_begins():
    content = Content(("END",))
    assert shown(content, "one E", "ND two", " three") == "one "
    assert content.stopped


def test_what_only_looks_like_one_is_shown_when_it_is_known_not_to_be():
    content = Content(("END",))
    assert content.add(0, "one EN") == "one "
    assert content.add(0, "OUGH") == "ENOUGH"
    assert shown(Content(("END",)), "one EN") == "one EN"


def test_the_sequence_that_is_complete_first_counts():
    assert shown(Content(("abcd", "b")), "xabcd") == "xa"


def test_messages_are_kept_apart():
    content = Content()
    assert content.add(0, "a") + content.add(0, "b") + content.add(2, "c") == f"ab{BETWEEN_MESSAGES}c"
    assert content.add(3, "") == ""


@given(TEXT, STOPS, st.data())
def test_how_the_text_is_cut_makes_no_difference(text: str, stops: tuple[str, ...], data: st.DataObject):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole, cut = Content(stops), Content(stops)
    assert shown(whole, text) == shown(cut, *pieces)
    assert whole.stopped == cut.stopped


@given(TEXT, STOPS)
def test_no_stop_sequence_is_ever_shown_and_all_before_it_is(text: str, stops: tuple[str, ...]):
    content = Content(stops)
    told = shown(content, text)
    assert text.startswith(told)
    assert not any(stop in told for stop in stops)
    assert content.stopped == any(stop in text for stop in stops)
    assert content.stopped or told == text
