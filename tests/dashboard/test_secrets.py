"""No page of the admin shows a secret of the database, whoever looks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.conf import settings
from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import Model
from django.test import Client
from django.urls import reverse

from accounts.auth_json import parse_auth_json
from accounts.store import Options, add_account
from dashboard.models import Authenticator
from gateway.keys import new_key
from gateway.models import ApiKey, Turn
from tests.accounts.cast import auth_json
from tests.dashboard.cast import SECRET, account, turn

pytestmark = pytest.mark.django_db

PROXY_PASSWORD = "a-password-of-a-proxy"
OWN = ("index", "clients", "lanes", "replicas", "second_factor", "password_change", "gateway_session_purge")


def pages() -> Iterator[str]:
    """Every page: the dashboard's own, and of each model its list, the form of a new one, and rows in all views."""
    yield from (reverse(f"admin:{name}") for name in OWN)
    for model in admin.site._registry:
        name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
        yield reverse(f"{name}_changelist")
        yield reverse(f"{name}_add")
        yield from (
            reverse(f"{name}_{view}", args=[pk]) for pk in rows(model) for view in ("change", "history", "delete")
        )


def rows(model: type[Model]) -> list[object]:
    return list(model._default_manager.values_list("pk", flat=True)[:2])


def test_no_page_shows_a_token_a_key_a_password_or_what_stands_for_one(admin_client: Client) -> None:
    options = Options(proxy=f"http://someone:{PROXY_PASSWORD}@proxy.example:8080")
    signed_in = add_account("ada", parse_auth_json(auth_json()), options, settings.TOKEN_KEYS, by="test")
    other = account("bo")
    turn()
    key = new_key()
    ApiKey.objects.create(name="client", lookup=key.lookup, digest=key.digest)
    person = User.objects.get()
    device = Authenticator.objects.create(user=User.objects.create_user("bea", password="unguessable"), name="phone")
    secrets = {
        "refresh-of-ada", SECRET, PROXY_PASSWORD, signed_in.credentials, other.credentials, key.text, key.digest,
        person.password, device.written_secret, device.secret.hex(), device.sealed_secret,
    }  # fmt: skip
    assert Turn.objects.exists()
    seen = 0
    for page in pages():
        answer = admin_client.get(page, follow=True)
        shown = answer.content.decode() + str(answer.headers)
        seen += answer.status_code == 200
        assert [secret for secret in secrets if str(secret) in shown] == [], page
    assert seen > 25
