import json
from datetime import UTC, datetime

import pytest

from accounts.auth_json import UnusableAuthJson, parse_auth_json, render_auth_json, signed_in_account, token_expiry
from accounts.credentials import CodexCredentials, OpenAICredentials
from tests.accounts.cast import NOON, SIGN_IN, auth_json, jwt

AUTH = "https://api.openai.com/auth"
PROFILE = "https://api.openai.com/profile"


def tokens(**changes):
    return json.loads(auth_json())["tokens"] | changes


class TestSignIn:
    def test_the_tokens_and_labels_of_a_sign_in_are_read(self):
        imported = parse_auth_json(auth_json())
        credentials = imported.credentials
        assert isinstance(credentials, CodexCredentials)
        assert credentials.refresh_token == "refresh-of-ada"
        assert credentials.account_id == "chatgpt-ada"
        assert credentials.last_refresh == datetime(2026, 3, 1, 8, 30, 0, 123456, tzinfo=UTC)
        assert (imported.email, imported.plan_type) == ("ada@example.com", "plus")
        assert imported.expires_at == 1_900_000_000

    def test_the_mode_need_not_be_named(self):
        assert isinstance(parse_auth_json(auth_json(auth_mode=None)).credentials, CodexCredentials)

    def test_a_sign_in_is_taken_although_a_key_stands_next_to_it(self):
        assert isinstance(parse_auth_json(auth_json(OPENAI_API_KEY="sk-1")).credentials, CodexCredentials)

    @pytest.mark.parametrize("field", ["access_token", "refresh_token"])
    @pytest.mark.parametrize("value", [None, ""])
    def test_a_missing_token_is_named(self, field, value):
        with pytest.raises(UnusableAuthJson, match=rf"no tokens\.{field}; sign in again"):
            parse_auth_json(auth_json(tokens=tokens(**{field: value})))

    def test_a_file_without_tokens_is_told_the_first_one_missing(self):
        with pytest.raises(UnusableAuthJson, match=r"no tokens\.access_token"):
            parse_auth_json(b"{}")

    def test_the_account_id_comes_from_the_tokens_alone(self):
        id_token = jwt(**{AUTH: {"chatgpt_account_id": "from-the-claims"}})
        imported = parse_auth_json(auth_json(tokens=tokens(account_id=None, id_token=id_token)))
        assert isinstance(imported.credentials, CodexCredentials)
        assert imported.credentials.account_id == ""

    def test_the_profile_gives_the_email_when_the_token_itself_does_not(self):
        id_token = jwt(**{PROFILE: {"email": "ada@example.org"}})
        assert parse_auth_json(auth_json(tokens=tokens(id_token=id_token))).email == "ada@example.org"

    @pytest.mark.parametrize(
        "id_token",
        [None, "", "opaque", "a.b.c", "e30.!!!!.c2ln", "e30.bm8ganNvbg.c2ln", jwt(email=5), jwt(), "ä.ä.ä"],
    )
    def test_an_id_token_that_says_nothing_leaves_the_labels_empty(self, id_token):
        imported = parse_auth_json(auth_json(tokens=tokens(id_token=id_token)))
        assert (imported.email, imported.plan_type) == ("", "")

    def test_null_claims_hide_no_other_claim(self):
        id_token = jwt(email="ada@example.com", **{AUTH: {"chatgpt_plan_type": None}, PROFILE: None})
        imported = parse_auth_json(auth_json(tokens=tokens(id_token=id_token)))
        assert (imported.email, imported.plan_type) == ("ada@example.com", "")

    @pytest.mark.parametrize("text", [None, "yesterday", "2026-03-01T08:30:00", ""])
    def test_an_unreadable_time_of_the_last_refresh_is_left_out(self, text):
        credentials = parse_auth_json(auth_json(last_refresh=text)).credentials
        assert isinstance(credentials, CodexCredentials)
        assert credentials.last_refresh is None

    def test_a_token_with_a_line_end_is_refused_without_showing_it(self):
        with pytest.raises(UnusableAuthJson, match="access_token contains") as caught:
            parse_auth_json(auth_json(tokens=tokens(access_token="secret\nsecret")))
        assert "secret" not in str(caught.value)


class TestApiKey:
    def test_the_key_of_an_apikey_file_is_read(self):
        imported = parse_auth_json(auth_json(auth_mode="apikey", OPENAI_API_KEY="sk-1"))
        assert imported.credentials == OpenAICredentials("sk-1")
        assert (imported.email, imported.expires_at) == ("", None)

    def test_a_file_with_a_key_and_no_mode_means_the_key(self):
        assert parse_auth_json(b'{"OPENAI_API_KEY": "sk-1"}').credentials == OpenAICredentials("sk-1")

    def test_a_missing_key_is_named(self):
        with pytest.raises(UnusableAuthJson, match="no OPENAI_API_KEY"):
            parse_auth_json(auth_json(auth_mode="apikey"))


class TestOtherFiles:
    @pytest.mark.parametrize(
        "content", [b"", b"{", b"\xff\xfe{", b"OPENAI_API_KEY=sk-secret", b'{"auth_mode": "\xff"}']
    )
    def test_what_is_no_json_is_refused(self, content):
        with pytest.raises(UnusableAuthJson, match="no JSON") as caught:
            parse_auth_json(content)
        assert "secret" not in str(caught.value)

    def test_a_field_of_the_wrong_type_is_named_without_its_value(self):
        with pytest.raises(UnusableAuthJson, match=r"tokens\.access_token") as caught:
            parse_auth_json(auth_json(tokens=tokens(access_token=["secret"])))
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize("mode", ["agent_identity", "personal_access_token", "ChatGPT"])
    def test_a_mode_that_cannot_be_used_is_named(self, mode):
        with pytest.raises(UnusableAuthJson, match=f"auth_mode '{mode}'"):
            parse_auth_json(auth_json(auth_mode=mode))


class TestTokenExpiry:
    def test_the_expiry_is_whole_seconds(self):
        assert token_expiry(jwt(exp=1_900_000_000.7)) == 1_900_000_000

    @pytest.mark.parametrize("token", ["opaque", jwt(), jwt(exp="soon"), jwt(exp=-1), jwt(exp=1e300), jwt(exp=None)])
    def test_a_token_without_a_real_expiry_has_none(self, token):
        assert token_expiry(token) is None


class TestRender:
    def test_what_is_written_is_read_back_whole(self):
        for credentials in (parse_auth_json(auth_json()).credentials, OpenAICredentials("sk-1")):
            assert parse_auth_json(render_auth_json(credentials, NOON)).credentials == credentials

    def test_a_sign_in_has_the_client_s_own_form(self):
        content = json.loads(render_auth_json(SIGN_IN, NOON))
        assert content == {
            "auth_mode": "chatgpt",
            "OPENAI_API_KEY": None,
            "tokens": {
                "id_token": "",
                "access_token": "access-of-ada",
                "refresh_token": "refresh-of-ada",
                "account_id": "chatgpt-ada",
            },
            "last_refresh": "2026-03-02T12:00:00Z",
        }

    def test_an_unknown_account_id_is_null(self):
        rendered = render_auth_json(CodexCredentials("access", "refresh"), NOON)
        assert json.loads(rendered)["tokens"]["account_id"] is None


class TestSignedInAccount:
    def test_the_id_token_says_which_account_a_new_sign_in_is_for(self):
        assert signed_in_account(jwt(**{AUTH: {"chatgpt_account_id": "chatgpt-ada"}})) == "chatgpt-ada"

    @pytest.mark.parametrize("id_token", ["", "opaque", jwt(), jwt(**{AUTH: {}})])
    def test_one_that_does_not_say_leaves_it_empty(self, id_token):
        assert signed_in_account(id_token) == ""
