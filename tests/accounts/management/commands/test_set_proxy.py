import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from accounts.credentials import proxy_of
from accounts.models import Account
from tests.accounts.cast import stored

pytestmark = pytest.mark.django_db


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "proxy"
    path.write_text("http://ada:secret@proxy.example:3128\n")
    return path


def test_it_is_stored_and_only_its_place_is_told(file):
    stored("ada")
    told = call_command("set_proxy", "ada", "--proxy-file", str(file))
    assert told == "ada goes by http://…@proxy.example:3128."
    assert proxy_of(Account.objects.get(), settings.TOKEN_KEYS) == "http://ada:secret@proxy.example:3128"
    assert call_command("set_proxy", "ada", "--proxy-file", str(file)).endswith("already.")


def test_it_is_taken_away(file):
    stored("ada")
    call_command("set_proxy", "ada", "--proxy-file", str(file))
    assert call_command("set_proxy", "ada", "--no-proxy") == "ada goes by no proxy."
    assert Account.objects.get().proxy == ""


@pytest.mark.parametrize("content", ["", "secret", "ftp://secret@x:1", "http://secrét@x:1"])
def test_what_is_no_proxy_is_refused_without_being_repeated(file, content):
    stored("ada")
    file.write_text(content, encoding="utf-8")
    with pytest.raises(CommandError) as refused:
        call_command("set_proxy", "ada", "--proxy-file", str(file))
    assert "secret" not in str(refused.value)


def test_a_file_or_an_account_that_is_not_there_is_named(file):
    with pytest.raises(CommandError, match="no account named ada"):
        call_command("set_proxy", "ada", "--no-proxy")
    with pytest.raises(CommandError, match="cannot be read"):
        call_command("set_proxy", "ada", "--proxy-file", str(file) + "x")
