import stat
from dataclasses import replace
from io import StringIO

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from accounts.auth_json import parse_auth_json
from accounts.credentials import seal
from accounts.models import AccountEvent
from tests.accounts.cast import OTHER_KEYS, SIGN_IN, stored

pytestmark = pytest.mark.django_db


@pytest.fixture
def target(tmp_path):
    return tmp_path / "auth.json"


def ada(**values):
    return stored("ada", **({"credentials": seal(SIGN_IN, settings.TOKEN_KEYS)} | values))


def export(*arguments, answer=""):
    out = StringIO()
    call_command("export_account", *map(str, arguments), stdin=StringIO(answer), stdout=out)
    return out.getvalue()


class TestWriting:
    def test_the_file_is_an_auth_json_that_its_owner_alone_can_read(self, target):
        ada()
        assert export("ada", target, "--yes") == f"Wrote the credentials of ada to {target}.\n"
        written = parse_auth_json(target.read_bytes()).credentials
        assert replace(written, last_refresh=None) == SIGN_IN
        assert stat.S_IMODE(target.stat().st_mode) == 0o600

    def test_it_is_noted_that_they_left_the_pool(self, target):
        ada()
        export("ada", target, "--yes")
        event = AccountEvent.objects.get()
        assert (event.what, event.by) == ("exported", "command line")

    def test_it_says_what_that_means_and_asks_first(self, target):
        ada()
        told = export("ada", target, answer="Yes\n")
        assert "disable the account before using the file elsewhere" in told
        assert target.exists()


class TestRefusing:
    def refused(self, *arguments, **options):
        with pytest.raises(CommandError) as caught:
            export(*arguments, **options)
        assert "access-of-ada" not in str(caught.value)
        return str(caught.value)

    @pytest.mark.parametrize("answer", ["no\n", "\n", "", "y\n"])
    def test_without_a_clear_yes_nothing_is_written(self, target, answer):
        ada()
        assert self.refused("ada", target, answer=answer) == "Nothing was written."
        assert not target.exists()
        assert not AccountEvent.objects.exists()

    def test_a_file_is_never_overwritten_nor_a_link_followed(self, target, tmp_path):
        ada()
        target.write_text("mine")
        assert "exists already" in self.refused("ada", target, "--yes")
        assert target.read_text() == "mine"
        link = tmp_path / "link"
        link.symlink_to(tmp_path / "elsewhere")
        assert "exists already" in self.refused("ada", link, "--yes")
        assert not (tmp_path / "elsewhere").exists()

    def test_a_file_that_cannot_be_written_is_named(self, tmp_path):
        ada()
        assert "cannot be written (No such file or directory)" in self.refused("ada", tmp_path / "no" / "x", "--yes")

    def test_an_account_must_be_there_and_its_credentials_open(self, target):
        assert self.refused("ada", target, "--yes") == "There is no account named ada."
        account = ada(credentials="")
        assert "sign it in first" in self.refused("ada", target, "--yes")
        account.credentials = seal(SIGN_IN, OTHER_KEYS)
        account.save()
        assert "restore the token_keys" in self.refused("ada", target, "--yes")
