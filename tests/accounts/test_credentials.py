from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from cryptography.fernet import Fernet

from accounts.credentials import (
    BrokenCredentials,
    CodexCredentials,
    InvalidTokenKey,
    OpenAICredentials,
    WrongTokenKey,
    check_token_key,
    has_newest_key,
    seal,
    unseal,
)
from tests.accounts.cast import KEYS, OTHER_KEYS

CODEX = CodexCredentials("access", "refresh", "id", "account", datetime(2026, 3, 1, 8, 30, tzinfo=UTC))
OPENAI = OpenAICredentials("sk-secret")


@dataclass
class Holder:
    name: str
    credentials: str


class TestCredentials:
    @pytest.mark.parametrize("credentials", [CODEX, OPENAI])
    def test_no_form_of_printing_shows_a_secret(self, credentials):
        for text in (repr(credentials), str(credentials), f"{[credentials]}"):
            assert not any(word in text for word in ("access=", "refresh'", "'id'", "account'", "secret"))

    def test_the_bearer_is_the_access_token_or_the_key(self):
        assert (CODEX.bearer, OPENAI.bearer) == ("access", "sk-secret")

    @pytest.mark.parametrize("token", ["", "a b", "a\r\nx: y", "schlüssel", "a\x00"])
    def test_a_token_that_no_header_could_carry_is_refused_without_showing_it(self, token):
        for build in (
            lambda: CodexCredentials(token, "refresh"),
            lambda: CodexCredentials("access", token),
            lambda: OpenAICredentials(token),
        ):
            with pytest.raises(BrokenCredentials) as caught:
                build()
            assert not token or repr(token) not in str(caught.value)

    def test_an_account_id_may_be_missing_but_not_broken(self):
        assert CodexCredentials("access", "refresh").account_id == ""
        with pytest.raises(BrokenCredentials, match="account_id"):
            CodexCredentials("access", "refresh", account_id="a\nb")


class TestSealing:
    @pytest.mark.parametrize("credentials", [CODEX, CodexCredentials("a", "r"), OPENAI])
    def test_what_is_sealed_comes_back_whole(self, credentials):
        assert unseal(seal(credentials, KEYS), KEYS) == credentials

    def test_the_sealed_text_shows_nothing(self):
        assert "sk-secret" not in seal(OPENAI, KEYS)

    def test_a_new_key_in_front_opens_what_the_old_one_sealed(self):
        assert unseal(seal(OPENAI, KEYS), OTHER_KEYS + KEYS) == OPENAI

    def test_the_first_key_seals(self):
        sealed = seal(OPENAI, OTHER_KEYS + KEYS)
        assert unseal(sealed, OTHER_KEYS) == OPENAI
        with pytest.raises(WrongTokenKey):
            unseal(sealed, KEYS)

    def test_it_can_be_told_which_key_has_sealed_a_text(self):
        sealed = seal(OPENAI, KEYS)
        assert has_newest_key(sealed, KEYS + OTHER_KEYS)
        assert not has_newest_key(sealed, OTHER_KEYS + KEYS)
        with pytest.raises(InvalidTokenKey, match="no token key"):
            has_newest_key(sealed, [])

    @pytest.mark.parametrize("damage", [lambda text: text[:-4], lambda text: "", lambda text: "no ciphertext ä"])
    def test_a_text_that_no_key_opens_says_what_to_restore_and_does_not_come_back(self, damage):
        sealed = damage(seal(OPENAI, KEYS))
        with pytest.raises(WrongTokenKey, match="restore the token_keys") as caught:
            unseal(sealed, KEYS)
        assert not sealed or sealed not in str(caught.value)

    def test_no_key_and_a_broken_key_are_told_apart_from_a_wrong_one(self):
        with pytest.raises(InvalidTokenKey, match="no token key"):
            seal(OPENAI, [])
        with pytest.raises(InvalidTokenKey, match="no Fernet key") as caught:
            seal(OPENAI, ["half-a-key"])
        assert "half-a-key" not in str(caught.value)

    @pytest.mark.parametrize(
        "content",
        [
            b"no json",
            b'{"kind": "other", "fields": {}}',
            b'{"kind": "codex", "fields": {"api_key": "sk-secret"}}',
            b'{"kind": "openai", "fields": {"api_key": ""}}',
        ],
    )
    def test_another_content_under_the_right_key_is_broken_not_wrong(self, content):
        sealed = Fernet(KEYS[0]).encrypt(content).decode()
        with pytest.raises(BrokenCredentials) as caught:
            unseal(sealed, KEYS)
        assert "sk-secret" not in str(caught.value)


class TestCheckTokenKey:
    def test_it_is_silent_when_all_open(self):
        check_token_key([Holder("ada", seal(CODEX, KEYS)), Holder("bo", seal(OPENAI, OTHER_KEYS))], KEYS + OTHER_KEYS)

    def test_it_names_the_accounts_that_cannot_be_opened(self):
        holders = [Holder("ada", seal(CODEX, KEYS)), Holder("bo", seal(OPENAI, OTHER_KEYS))]
        with pytest.raises(WrongTokenKey, match="credentials of bo cannot be opened"):
            check_token_key(holders, KEYS)

    def test_it_names_three_and_counts_the_rest(self):
        sealed = seal(OPENAI, OTHER_KEYS)
        with pytest.raises(WrongTokenKey, match="of a, b, c and 2 more cannot"):
            check_token_key([Holder(name, sealed) for name in "abcde"], KEYS)

    def test_an_account_without_credentials_needs_no_key(self):
        check_token_key([Holder("ada", "")], KEYS)

    def test_an_unusable_key_stops_the_start_of_an_empty_pool_too(self):
        with pytest.raises(InvalidTokenKey):
            check_token_key([], ["half-a-key"])
