import pytest

from accounts.issuer import Answer, InvalidIssuer, Issuer, read_issuer


class TestReadIssuer:
    def test_without_settings_it_is_the_codex_client_s(self):
        issuer = read_issuer({})
        assert issuer == Issuer()
        assert issuer.token_url == "https://auth.openai.com/oauth/token"
        assert issuer.user_code_url == "https://auth.openai.com/api/accounts/deviceauth/usercode"
        assert issuer.device_token_url == "https://auth.openai.com/api/accounts/deviceauth/token"
        assert issuer.redirect_uri == "https://auth.openai.com/deviceauth/callback"
        assert issuer.page == "https://auth.openai.com/codex/device"

    def test_everything_moves_with_the_issuer(self):
        issuer = read_issuer({"GATEWAY_ISSUER_URL": "http://localhost:8000/", "GATEWAY_CLIENT_ID": "app_1"})
        assert issuer.token_url == "http://localhost:8000/oauth/token"
        assert issuer.page == "http://localhost:8000/codex/device"
        assert issuer.client_id == "app_1"

    def test_the_token_address_can_be_elsewhere(self):
        issuer = read_issuer({"GATEWAY_TOKEN_URL": "https://tokens.example.com/t"})
        assert (issuer.token_url, issuer.url) == ("https://tokens.example.com/t", Issuer().url)

    @pytest.mark.parametrize("variable", ["GATEWAY_ISSUER_URL", "GATEWAY_TOKEN_URL"])
    def test_an_address_to_which_no_token_may_go_names_its_variable(self, variable):
        with pytest.raises(InvalidIssuer, match=rf"{variable} cannot be used\. .*plain http"):
            read_issuer({variable: "http://auth.example.com"})


class TestAnswer:
    def test_only_texts_are_texts(self):
        answer = Answer(200, {"a": "b", "c": 5, "d": None})
        assert [answer.text(name) for name in "acde"] == ["b", "", "", ""]

    def test_what_it_holds_is_not_printed(self):
        assert "secret" not in repr(Answer(200, {"access_token": "secret"}))
