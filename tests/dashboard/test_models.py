"""The secrets of authenticators are sealed in the database, and work all the same."""

from __future__ import annotations

import time

import pytest
from cryptography.fernet import Fernet
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.test import Client, override_settings
from django_otp.oath import TOTP
from django_otp.plugins.otp_totp.models import TOTPDevice

from accounts.credentials import WrongTokenKey, unseal_text
from accounts.rotation import rotate_keys, sealed_columns
from dashboard.models import Authenticator
from tests.accounts.cast import KEYS, OTHER_KEYS

pytestmark = pytest.mark.django_db


@pytest.fixture
def device(settings: object) -> Authenticator:
    settings.TOKEN_KEYS = KEYS  # type: ignore[attr-defined]
    return Authenticator.objects.create(user=User.objects.create_user("bea"), name="phone")


def code_of(device: Authenticator, steps: int = 0) -> str:
    code = TOTP(device.secret)
    code.time = time.time() + 30 * steps
    return f"{code.token():06d}"


def columns(device: Authenticator) -> str:
    return str(Authenticator.objects.filter(pk=device.pk).values().get())


def test_no_column_holds_a_secret_that_can_be_read(device: Authenticator) -> None:
    assert len(device.secret) == 20
    for form in (device.secret.hex(), device.written_secret):
        assert form.lower() not in columns(device).lower()
    assert unseal_text(device.sealed_secret, KEYS) == device.secret.hex()


def test_a_code_is_taken_once_and_a_wrong_one_makes_the_next_wait(device: Authenticator) -> None:
    code = code_of(device)
    assert device.verify_token(code)
    assert not device.verify_token(code)
    assert not device.verify_is_allowed()[0]
    device.throttle_reset()
    for wrong in ("", "abc", "12 45", "٣"):
        assert not device.verify_token(wrong)
        device.throttle_reset()


def test_an_app_whose_clock_is_a_step_away_is_understood_and_followed(device: Authenticator) -> None:
    assert device.verify_token(code_of(device, steps=1))
    assert Authenticator.objects.get().drift == 1
    assert not device.verify_token(code_of(device, steps=4))


def test_its_address_says_whose_it_is_and_of_what(device: Authenticator) -> None:
    assert device.address == (
        f"otpauth://totp/Pointsman%3Abea?secret={device.written_secret}"
        "&algorithm=SHA1&digits=6&period=30&issuer=Pointsman"
    )


def test_with_a_new_token_key_the_secret_is_sealed_anew_and_stays_the_same(device: Authenticator) -> None:
    secret = device.secret
    assert (Authenticator, "sealed_secret") in list(sealed_columns())
    assert rotate_keys(OTHER_KEYS + KEYS).sealed == 1
    with override_settings(TOKEN_KEYS=OTHER_KEYS):
        assert Authenticator.objects.get().secret == secret
        assert rotate_keys(OTHER_KEYS).newest == 1


def test_a_secret_that_no_key_opens_is_named_and_signs_nobody_in(device: Authenticator, client: Client) -> None:
    with override_settings(PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"]):
        weak = make_password("unguessable-one")
    User.objects.update(is_staff=True, password=weak)
    lost = [Fernet.generate_key().decode()]
    assert rotate_keys(lost).unopened == ("authenticator of bea",)
    with override_settings(TOKEN_KEYS=lost, PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"]):
        with pytest.raises(WrongTokenKey):
            _ = device.secret
        given = {"username": "bea", "password": "unguessable-one", "code": "123456"}
        shown = client.post("/admin/login/", given).content.decode()
    assert "Your code cannot be checked. A stored secret cannot be opened" in shown


@pytest.mark.django_db(transaction=True)
def test_what_earlier_versions_have_stored_is_sealed_and_leaves_no_trace() -> None:
    executor = MigrationExecutor(connection)
    executor.migrate([("dashboard", "0001_authenticators")])
    user = User.objects.create_user("cy")
    old = TOTPDevice.objects.create(user=user, name="phone", last_t=7, drift=-1)
    MigrationExecutor(connection).migrate([("dashboard", "0002_seal_secrets")])
    moved = Authenticator.objects.get()
    assert (moved.user, moved.secret, moved.last_t, moved.drift) == (user, old.bin_key, 7, -1)
    assert moved.created_at == old.created_at
    assert not TOTPDevice.objects.exists()
    if connection.vendor == "sqlite":
        assert old.key.encode() not in connection.connection.serialize()
