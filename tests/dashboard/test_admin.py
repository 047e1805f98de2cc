"""The site as a whole."""

from __future__ import annotations

import pytest
from django.contrib import admin
from django.test import Client

from accounts.models import Account
from gateway.models import ApiKey, Turn


@pytest.mark.django_db
def test_the_site_carries_the_name_of_the_project(admin_client: Client) -> None:
    shown = admin_client.get("/admin/").content.decode()
    assert shown.count("Pointsman") >= 2
    for name in ("Accounts", "API keys", "Turns"):
        assert name in shown
    assert "View site" not in shown


def test_accounts_keys_and_turns_are_on_the_site() -> None:
    assert all(admin.site.is_registered(model) for model in (Account, ApiKey, Turn))


@pytest.mark.django_db
def test_whoever_is_not_signed_in_sees_the_login_only(client: Client) -> None:
    answer = client.get("/admin/accounts/account/")
    assert answer.status_code == 302
    assert answer.headers["location"].startswith("/admin/login/")
