import pytest
from django.core.management import CommandError, call_command

from accounts.credentials import seal, unseal
from accounts.models import Account
from tests.accounts.cast import KEYS, OTHER_KEYS, SIGN_IN, meanwhile, stored

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def keys(settings):
    settings.TOKEN_KEYS = OTHER_KEYS + KEYS


def rotate():
    return call_command("rotate_keys")


def test_all_credentials_are_sealed_with_the_newest_key_and_the_counts_told():
    stored("ada")
    stored("bo", credentials=seal(SIGN_IN, OTHER_KEYS))
    assert rotate() == (
        "Sealed the secrets of 1 records anew; 1 had the newest key already. Older keys are not needed any more."
    )
    assert unseal(Account.objects.get(name="ada").credentials, OTHER_KEYS) == SIGN_IN
    assert rotate().startswith("Sealed the secrets of 0 records anew; 2 had")


def test_accounts_that_no_key_opens_are_named(settings):
    stored("ada")
    settings.TOKEN_KEYS = OTHER_KEYS
    with pytest.raises(CommandError, match="No key opens the secrets of ada: add the missing key"):
        rotate()


def test_an_account_that_changed_meanwhile_is_left_for_the_next_run():
    stored("ada")
    with (
        meanwhile("UPDATE", lambda: Account.objects.update(credentials=seal(SIGN_IN, KEYS))),
        pytest.raises(CommandError, match="1 changed all the time; run the command again"),
    ):
        rotate()


def test_an_unusable_key_is_told(settings):
    stored("ada")
    settings.TOKEN_KEYS = ["half-a-key"]
    with pytest.raises(CommandError, match="no Fernet key"):
        rotate()
