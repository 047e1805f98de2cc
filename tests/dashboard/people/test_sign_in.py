"""Who gets in, and how often one may try."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client, override_settings
from django.utils import timezone
from django_otp.oath import TOTP

from dashboard.models import Authenticator
from dashboard.people.sign_in import WRONG

pytestmark = pytest.mark.django_db

LOGIN, OVERVIEW, FACTOR = "/admin/login/", "/admin/", "/admin/second-factor/"
PASSWORD = "a-long-enough-one"


@pytest.fixture(autouse=True)
def quick_hashes() -> object:
    with override_settings(PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"]):
        yield


@pytest.fixture
def admin() -> User:
    return User.objects.create_superuser("admin", password=PASSWORD)


def sign_in(client: Client, password: str = PASSWORD, **fields: str) -> int:
    given = {"username": "admin", "password": password, "next": OVERVIEW, **fields}
    return client.post(LOGIN, given).status_code


def is_in(client: Client) -> bool:
    return client.get(OVERVIEW).status_code == 200


def code_of(device: Authenticator) -> str:
    return f"{TOTP(device.secret).token():06d}"


def with_authenticator(user: User) -> Authenticator:
    return Authenticator.objects.create(user=user, name="phone", confirmed=True)


def test_a_password_lets_in_who_has_no_authenticator(admin: User, client: Client) -> None:
    assert "Code of your authenticator" not in client.get(LOGIN).content.decode()
    assert sign_in(client) == 302
    assert is_in(client)


def test_five_wrong_passwords_shut_the_door_for_that_name_and_that_address(admin: User, client: Client) -> None:
    for _ in range(4):
        assert sign_in(client, "wrong") == 200
    assert sign_in(client, "wrong") == 429
    assert sign_in(client) == 429
    assert "Too many attempts" in client.post(LOGIN, {"username": "admin", "password": PASSWORD}).content.decode()
    elsewhere = Client(REMOTE_ADDR="10.9.8.7")
    assert sign_in(elsewhere) == 302
    User.objects.create_superuser("other", password=PASSWORD)
    assert sign_in(client, username="other") == 302


def test_an_authenticator_is_set_up_by_scanning_and_confirming(admin: User, client: Client) -> None:
    sign_in(client)
    shown = client.post(FACTOR, {"do": "begin"}).content.decode()
    assert "<svg" in shown
    assert "style=" not in shown
    device = Authenticator.objects.get()
    assert not device.confirmed
    assert WRONG in client.post(FACTOR, {"do": "confirm", "code": "000000"}).content.decode()
    Authenticator.objects.update(throttling_failure_count=0)
    assert client.post(FACTOR, {"do": "confirm", "code": code_of(device)}).status_code == 302
    assert Authenticator.objects.get().confirmed
    assert is_in(client)


def test_the_secret_is_not_shown_again(admin: User, client: Client) -> None:
    sign_in(client)
    device = with_authenticator(admin)
    session = client.session
    session["otp_device_id"] = device.persistent_id
    session.save()
    for page in (FACTOR, "/admin/dashboard/authenticator/", f"/admin/dashboard/authenticator/{device.pk}/change/"):
        answer = client.get(page)
        assert answer.status_code == 200
        assert device.written_secret not in answer.content.decode()
        assert re.search(r"[A-Z2-7]{32}", answer.content.decode()) is None


def test_with_an_authenticator_the_password_alone_lets_nobody_in(admin: User, client: Client) -> None:
    device = with_authenticator(admin)
    assert "Code of your authenticator" in client.get(LOGIN).content.decode()
    for code in ("", "000000"):
        assert sign_in(client, code=code) == 200
        Authenticator.objects.update(throttling_failure_count=0)
    assert not is_in(client)
    assert sign_in(client, code=code_of(device)) == 302
    assert is_in(client)


def test_wrong_codes_slow_down_who_tries_them(admin: User, client: Client) -> None:
    device = with_authenticator(admin)
    sign_in(client, code="000000")
    assert sign_in(client, code=code_of(device)) == 200
    Authenticator.objects.update(throttling_failure_timestamp=timezone.now() - timedelta(seconds=5))
    assert sign_in(client, code=code_of(device)) == 302


def test_a_session_from_before_the_authenticator_has_to_show_a_code(admin: User, client: Client) -> None:
    sign_in(client)
    with_authenticator(admin)
    assert not is_in(client)


def test_removing_the_authenticator_takes_a_code(admin: User, client: Client) -> None:
    device = with_authenticator(admin)
    sign_in(client, code=code_of(device))
    client.post(FACTOR, {"do": "remove", "code": "000000"})
    assert Authenticator.objects.exists()
    Authenticator.objects.update(throttling_failure_count=0, last_t=-1)
    assert client.post(FACTOR, {"do": "remove", "code": code_of(device)}).status_code == 302
    assert not Authenticator.objects.exists()
    assert is_in(client)
