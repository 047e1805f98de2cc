from dataclasses import replace
from datetime import timedelta

import pytest

from accounts.auth_json import Imported
from accounts.credentials import CodexCredentials, OpenAICredentials
from accounts.identity import is_outdated, same_sign_in, twins
from tests.accounts.cast import NOON, SIGN_IN, jwt

ADA = Imported(SIGN_IN, "ada@example.com")
RENEWED = Imported(replace(SIGN_IN, refresh_token="refresh-2"), "ada@example.com")
COLLEAGUE = Imported(replace(SIGN_IN, refresh_token="refresh-of-bo"), "bo@example.com")
KEY = Imported(OpenAICredentials("sk-1"))


class TestSameSignIn:
    @pytest.mark.parametrize(
        ("other", "same"),
        [
            (ADA, True),
            (RENEWED, True),
            (Imported(SIGN_IN), True),
            (Imported(replace(SIGN_IN, refresh_token="other")), False),
            (COLLEAGUE, False),
            (Imported(replace(SIGN_IN, refresh_token="other", account_id="workspace"), "ada@example.com"), False),
            (KEY, False),
        ],
    )
    def test_it_is_one_person_in_one_account_or_one_token(self, other, same):
        assert same_sign_in(ADA, other) is same
        assert same_sign_in(other, ADA) is same

    def test_two_without_a_name_are_not_one_for_that(self):
        nameless = CodexCredentials("a", "r")
        assert not same_sign_in(Imported(nameless), Imported(replace(nameless, refresh_token="s")))


def test_the_first_two_that_are_the_same_are_named_by_their_places():
    assert twins([COLLEAGUE, ADA, KEY, KEY, RENEWED, ADA]) == (2, 5)
    assert twins([ADA, COLLEAGUE, KEY]) is None


def made(end=None, at=None, refresh="refresh-2"):
    access = "opaque" if end is None else jwt(exp=end)
    return CodexCredentials(access, refresh, last_refresh=at)


@pytest.mark.parametrize(
    ("given", "stored", "outdated"),
    [
        (made(100), made(200, refresh="refresh-3"), True),
        (made(200), made(100, refresh="refresh-3"), False),
        (made(100), made(200), False),
        (made(100, NOON), made(200, NOON - timedelta(days=1), "refresh-3"), True),
        (made(None, NOON - timedelta(days=1)), made(200, NOON, "refresh-3"), True),
        (made(None, NOON), made(None, NOON - timedelta(days=1), "refresh-3"), False),
        (made(None, NOON), made(None, None, "refresh-3"), False),
        (made(None, None), made(None, NOON, "refresh-3"), False),
    ],
)
def test_the_newer_token_is_the_one_that_ends_later_by_the_issuers_time_else_the_one_made_later(
    given, stored, outdated
):
    assert is_outdated(given, stored) is outdated
