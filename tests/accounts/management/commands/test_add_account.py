import json
from io import BytesIO

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from accounts.credentials import CodexCredentials, OpenAICredentials, proxy_of, seal, unseal
from accounts.management.commands.add_account import Command
from accounts.models import Account
from tests.accounts.cast import auth_json, jwt

pytestmark = pytest.mark.django_db


@pytest.fixture
def sign_in(tmp_path):
    path = tmp_path / "auth.json"
    path.write_bytes(auth_json())
    return str(path)


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "key"
    path.write_text("sk-secret\n")
    return str(path)


def add(*arguments, **options):
    return call_command("add_account", *arguments, **options)


def credentials():
    return unseal(Account.objects.get().credentials, settings.TOKEN_KEYS)


class TestAdding:
    def test_a_sign_in_becomes_a_codex_account(self, sign_in):
        sentence = add("ada", "--kind", "codex", "--auth-json", sign_in)
        assert sentence == (
            "Added the codex account ada at https://chatgpt.com/backend-api/codex. "
            "Its access token is valid until 2030-03-17 17:46 UTC."
        )
        assert isinstance(credentials(), CodexCredentials)
        assert Account.objects.get().plan_type == "plus"

    def test_a_key_becomes_an_openai_account(self, key):
        sentence = add("cy", "--kind", "openai", "--api-key-file", key)
        assert sentence == "Added the openai account cy at https://api.openai.com/v1."
        assert credentials() == OpenAICredentials("sk-secret")

    def test_a_minus_reads_standard_input(self):
        add("cy", "--kind", "openai", "--api-key-file", "-", stdin=BytesIO(b"  sk-secret\r\n"))
        assert credentials() == OpenAICredentials("sk-secret")
        add("ada", "--kind", "codex", "--auth-json", "-", stdin=BytesIO(auth_json()))
        assert Account.objects.count() == 2

    def test_the_key_of_an_apikey_auth_json_becomes_an_openai_account(self):
        content = auth_json(auth_mode="apikey", OPENAI_API_KEY="sk-secret")
        add("cy", "--kind", "openai", "--auth-json", "-", stdin=BytesIO(content))
        assert credentials() == OpenAICredentials("sk-secret")

    def test_the_options_reach_the_account(self, key):
        options = ["--base-url", "http://localhost:9000/v1/", "--transport", "http", "--priority", "3"]
        add("cy", "--kind", "openai", "--api-key-file", key, *options)
        cy = Account.objects.get()
        assert (cy.base_url, cy.transport, cy.priority) == ("http://localhost:9000/v1", "http", 3)

    def test_a_proxy_comes_from_a_file_and_is_stored_sealed(self, key, tmp_path):
        file = tmp_path / "proxy"
        file.write_text("socks5h://ada:secret@proxy.example:1080\n")
        add("cy", "--kind", "openai", "--api-key-file", key, "--proxy-file", str(file))
        cy = Account.objects.get()
        assert proxy_of(cy, settings.TOKEN_KEYS) == "socks5://ada:secret@proxy.example:1080"
        assert "secret" not in cy.proxy


class TestSeveral:
    @pytest.fixture
    def sign_ins(self, tmp_path):
        paths = []
        for name in ("ada", "bo", "cy"):
            path = tmp_path / f"{name}.json"
            own = {"account_id": f"chatgpt-{name}", "refresh_token": f"refresh-of-{name}"}
            tokens = json.loads(auth_json())["tokens"] | own
            path.write_bytes(auth_json(tokens=tokens))
            paths.append(str(path))
        return paths

    def test_each_file_becomes_an_account_under_the_next_free_number(self, sign_ins, key):
        add("team-2", "--kind", "openai", "--api-key-file", key)
        sentence = add("team", "--kind", "codex", "--priority", "5", "--auth-json", *sign_ins)
        assert sentence == "Added 3 codex accounts: team-1, team-3, team-4."
        added = Account.objects.filter(kind="codex").order_by("name")
        assert [(account.name, account.account_id, account.priority) for account in added] == [
            ("team-1", "chatgpt-ada", 5),
            ("team-3", "chatgpt-bo", 5),
            ("team-4", "chatgpt-cy", 5),
        ]

    def test_a_file_that_cannot_be_used_is_named_and_nothing_is_added(self, sign_ins, tmp_path):
        bad = tmp_path / "bad.json"
        bad.write_text("{")
        with pytest.raises(CommandError, match=r"bad\.json: The file is no JSON"):
            add("team", "--kind", "codex", "--auth-json", *sign_ins, str(bad))
        assert not Account.objects.exists()

    def test_the_same_sign_in_twice_adds_none_of_them(self, sign_ins):
        with pytest.raises(CommandError, match=r"Numbers 1 and 4 .* the same sign-in \(ada@example.com\)"):
            add("team", "--kind", "codex", "--auth-json", *sign_ins, sign_ins[0])
        assert not Account.objects.exists()

    def test_they_cannot_all_replace_one_account(self, sign_ins):
        with pytest.raises(CommandError, match="give one file"):
            add("team", "--kind", "codex", "--replace", "--auth-json", *sign_ins)


class TestReplacing:
    def test_a_name_in_use_is_refused_and_the_way_out_named(self, key):
        add("cy", "--kind", "openai", "--api-key-file", key)
        with pytest.raises(CommandError, match="named cy already; use --replace"):
            add("cy", "--kind", "openai", "--api-key-file", key)

    def test_replace_gives_it_the_new_credentials_and_tells_its_state(self, key):
        add("cy", "--kind", "openai", "--api-key-file", key)
        Account.objects.update(state="needs_login")
        sentence = add("cy", "--kind", "openai", "--api-key-file", "-", "--replace", stdin=BytesIO(b"sk-new"))
        assert sentence == "Replaced the credentials of cy, which is active."
        assert credentials() == OpenAICredentials("sk-new")

    def test_replace_needs_an_account(self, key):
        with pytest.raises(CommandError, match="no account named cy"):
            add("cy", "--kind", "openai", "--api-key-file", key, "--replace")


class TestTheSameFileAgain:
    """The gateway refreshes the sign-in of a file, whose own refresh token does not work from then on."""

    def refreshed(self, name):
        account = Account.objects.get(name=name)
        newer = CodexCredentials(jwt(exp=1_900_000_600), "refresh-2", account_id="chatgpt-ada")
        Account.objects.filter(id=account.id).update(credentials=seal(newer, settings.TOKEN_KEYS))
        return newer

    def test_adding_it_under_another_name_is_refused_by_name(self, sign_in):
        add("ada", "--kind", "codex", "--auth-json", sign_in)
        with pytest.raises(CommandError, match="in the pool as ada already"):
            add("bo", "--kind", "codex", "--auth-json", sign_in)
        assert Account.objects.count() == 1

    def test_it_is_known_by_its_token_where_it_names_nobody(self, tmp_path):
        nameless = tmp_path / "nameless.json"
        nameless.write_bytes(auth_json(tokens={"access_token": "a", "refresh_token": "r"}))
        add("ada", "--kind", "codex", "--auth-json", str(nameless))
        with pytest.raises(CommandError, match="in the pool as ada already"):
            add("bo", "--kind", "codex", "--auth-json", str(nameless))

    def test_giving_it_again_to_its_account_loses_nothing_that_was_refreshed_since(self, sign_in):
        add("ada", "--kind", "codex", "--auth-json", sign_in)
        newer = self.refreshed("ada")
        with pytest.raises(CommandError, match=r"ada holds a newer sign-in than this one.*login_account ada"):
            add("ada", "--kind", "codex", "--replace", "--auth-json", sign_in)
        assert unseal(Account.objects.get().credentials, settings.TOKEN_KEYS) == newer

    def test_before_any_refresh_it_may_be_given_again(self, sign_in):
        add("ada", "--kind", "codex", "--auth-json", sign_in)
        assert "Replaced" in add("ada", "--kind", "codex", "--replace", "--auth-json", sign_in)


class TestRefusing:
    @pytest.mark.parametrize("number", ["99999999999", "-1000000000", "1.5", "high"])
    def test_a_priority_that_no_database_could_hold(self, key, number):
        with pytest.raises(CommandError, match="a whole number from -999999999 to 999999999"):
            add("ada", "--kind", "openai", "--api-key-file", key, f"--priority={number}")
        assert not Account.objects.exists()

    def refused(self, *arguments, **options) -> str:
        with pytest.raises(CommandError) as caught:
            add(*arguments, **options)
        assert Account.objects.count() == 0
        assert "secret" not in str(caught.value)
        return str(caught.value)

    def test_a_key_file_is_no_sign_in(self, key):
        assert "no JSON" in self.refused("ada", "--kind", "codex", "--auth-json", key)

    def test_the_kind_must_fit_the_file(self, key, sign_in):
        assert "use --kind openai" in self.refused("ada", "--kind", "codex", "--api-key-file", key)
        assert "use --kind codex" in self.refused("ada", "--kind", "openai", "--auth-json", sign_in)

    def test_exactly_one_file_is_needed(self, key, sign_in):
        assert "required" in self.refused("ada", "--kind", "codex")
        both = ("--api-key-file", key, "--auth-json", sign_in)
        assert "not allowed with" in self.refused("ada", "--kind", "codex", *both)

    def test_a_caller_in_python_is_told_the_same(self):
        with pytest.raises(CommandError, match="either --auth-json or --api-key-file"):
            Command().handle(name="ada", kind="codex")

    def test_a_file_that_is_not_there_is_named(self, tmp_path):
        message = self.refused("ada", "--kind", "codex", "--auth-json", str(tmp_path / "missing.json"))
        assert "missing.json cannot be read (No such file or directory)" in message

    @pytest.mark.parametrize(
        ("content", "sentence"),
        [
            (b"", "no api_key"),
            (b"sk-secret\nsk-secret", "line ends"),
            (b' {"OPENAI_API_KEY":"sk-secret"}', "JSON and no API key"),
            (b'["sk-secret"]', "JSON and no API key"),
            (b"\xff\xfes\x00k\x00", "not text in UTF-8"),
            (b"s" * (1024 * 1024 + 1), "larger than 1 MiB"),
        ],
    )
    def test_a_file_that_holds_no_key_is_refused(self, content, sentence):
        arguments = ("cy", "--kind", "openai", "--api-key-file", "-")
        assert sentence in self.refused(*arguments, stdin=BytesIO(content))

    def test_a_bad_name_or_base_url_is_refused_in_words(self, key):
        arguments = ("--kind", "openai", "--api-key-file", key)
        assert "must begin with a letter" in self.refused("a/b", *arguments)
        assert "plain http" in self.refused("cy", *arguments, "--base-url", "http://example.com")
