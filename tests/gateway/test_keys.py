"""Keys: what is stored cannot be used, and only the whole key opens anything."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.keys import KeyRing, KeySnapshot, NewKey, digest, new_key


def stored(key: NewKey, number: int = 1, *, enabled: bool = True) -> KeySnapshot:
    return KeySnapshot(number, f"key-{number}", key.lookup, key.digest, enabled)


def test_a_new_key_is_found_by_its_whole_text() -> None:
    key, other = new_key(), new_key()
    ring = KeyRing([stored(key, 1), stored(other, 2)])
    assert ring.find(key.text) == stored(key, 1)
    assert ring.find(other.text) == stored(other, 2)


def test_keys_are_long_different_and_tell_whose_they_are() -> None:
    keys = [new_key() for _ in range(100)]
    assert len({key.text for key in keys}) == len({key.lookup for key in keys}) == 100
    assert all(key.text.startswith(f"pm_{key.lookup}_") for key in keys)
    assert all(len(key.text.split("_", 2)[2]) >= 43 for key in keys), "256 bits take 43 characters"


def test_what_is_stored_of_a_key_does_not_open_anything() -> None:
    key = new_key()
    ring = KeyRing([stored(key)])
    for stolen in (key.digest, f"pm_{key.lookup}_{key.digest}", f"pm_{key.lookup}_", f"pm_{key.lookup}"):
        assert ring.find(stolen) is None


def test_a_keys_secret_shows_neither_in_its_repr_nor_in_what_is_stored() -> None:
    key = new_key()
    secret = key.text.split("_", 2)[2]
    assert secret not in repr(key) + repr(stored(key))
    assert repr(key) == f"<NewKey {key.lookup}>"
    assert key.digest == digest(secret)


def test_the_secret_of_one_key_does_not_open_another() -> None:
    key, other = new_key(), new_key()
    ring = KeyRing([stored(key, 1), stored(other, 2)])
    assert ring.find(f"pm_{key.lookup}_{other.text.split('_', 2)[2]}") is None


def test_a_key_that_was_switched_off_or_removed_opens_nothing_any_more() -> None:
    key, other = new_key(), new_key()
    ring = KeyRing([stored(key, 1), stored(other, 2)])
    ring.replace([stored(key, 1, enabled=False)])
    assert ring.find(key.text) is None
    assert ring.find(other.text) is None


def test_a_ring_holds_no_key_before_it_is_given_one() -> None:
    assert KeyRing().find(new_key().text) is None


@pytest.mark.parametrize(
    ("header", "opens"),
    [
        ("Bearer {}", True),
        ("bearer {}", True),
        ("BEARER   {}  ", True),
        ("Basic {}", False),
        ("{}", False),
        ("Bearer", False),
        ("Bearer ", False),
        ("Bearer {} {}", False),
    ],
)
def test_only_a_bearer_token_counts(header: str, opens: bool) -> None:
    key = new_key()
    ring = KeyRing([stored(key)])
    assert (ring.from_authorization(header.format(key.text, key.text)) is not None) is opens


def test_no_header_is_no_key() -> None:
    assert KeyRing([stored(new_key())]).from_authorization(None) is None


@given(st.text(max_size=100))
def test_any_other_text_opens_nothing_and_breaks_nothing(text: str) -> None:
    key = new_key()
    ring = KeyRing([stored(key)])
    for attempt in (text, f"pm_{text}", f"pm_{key.lookup}_{text}"):
        assert ring.find(attempt) is None
    assert ring.from_authorization(f"Bearer {text}") is None


def test_a_snapshot_is_replaced_and_never_changed() -> None:
    key = stored(new_key())
    assert replace(key, enabled=False) != key
    with pytest.raises(AttributeError):
        key.enabled = False  # type: ignore[misc]
