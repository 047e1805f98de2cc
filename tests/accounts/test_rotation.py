from dataclasses import replace

import pytest
from cryptography.fernet import Fernet

from accounts.credentials import proxy_of, seal, seal_text, unseal
from accounts.models import Account
from accounts.rotation import Rotation, rotate_keys
from tests.accounts.cast import KEYS, OTHER_KEYS, SIGN_IN, meanwhile, stored

pytestmark = pytest.mark.django_db

NEWER = replace(SIGN_IN, access_token="newer-access")
PROXY = "http://ada:secret@proxy.example:3128"


class TestRotateKeys:
    BOTH = OTHER_KEYS + KEYS

    def test_everything_is_sealed_with_the_first_key_and_means_the_same(self):
        stored("ada")
        stored("bo", credentials=seal(NEWER, OTHER_KEYS))
        stored("cy", credentials="")
        assert rotate_keys(self.BOTH) == Rotation(sealed=1, newest=1, unopened=(), left=0)
        assert unseal(Account.objects.get(name="ada").credentials, OTHER_KEYS) == SIGN_IN
        assert rotate_keys(self.BOTH) == Rotation(sealed=0, newest=2, unopened=(), left=0)

    def test_what_no_key_opens_is_named_and_stays(self):
        stored("ada")
        sealed = stored("bo", credentials=seal(NEWER, [Fernet.generate_key().decode()])).credentials
        assert rotate_keys(self.BOTH) == Rotation(sealed=1, newest=0, unopened=("bo",), left=0)
        assert Account.objects.get(name="bo").credentials == sealed

    def test_new_tokens_in_the_same_moment_are_not_overwritten(self):
        stored("ada")
        with meanwhile("UPDATE", lambda: Account.objects.update(credentials=seal(NEWER, KEYS))):
            assert rotate_keys(self.BOTH).left == 1
        assert unseal(Account.objects.get().credentials, self.BOTH) == NEWER

    def test_proxies_are_sealed_anew_with_the_credentials(self):
        stored("ada", proxy=seal_text(PROXY, KEYS))
        stored("bo", credentials=seal(NEWER, OTHER_KEYS), proxy=seal_text(PROXY, KEYS))
        assert rotate_keys(self.BOTH).sealed == 2
        for account in Account.objects.all():
            assert proxy_of(account, OTHER_KEYS) == PROXY
