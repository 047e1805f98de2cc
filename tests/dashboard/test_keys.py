"""Keys are made here, shown once, and switched on and off."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from gateway.keys import KeyRing
from gateway.models import ApiKey
from gateway.rows import create_key, load_keys

pytestmark = pytest.mark.django_db

LIST = "/admin/gateway/apikey/"


def page(client: Client, path: str = "") -> str:
    answer = client.get(LIST + path)
    assert answer.status_code == 200
    return answer.content.decode()


def add(client: Client, name: str) -> str:
    """Add a key by the form; the page that follows."""
    return client.post(f"{LIST}add/", {"name": name}, follow=True).content.decode()


def act(client: Client, action: str, *names: str) -> str:
    keys = ApiKey.objects.filter(name__in=names)
    selected = {"action": action, "_selected_action": [key.pk for key in keys]}
    return client.post(LIST, selected, follow=True).content.decode()


def shown_key(shown: str) -> str:
    found = re.search(r"<code>(pm_\w+_[\w-]+)</code>", shown)
    assert found is not None, shown
    return found[1]


def test_a_new_key_is_shown_once_and_opens_the_gateway(admin_client: Client) -> None:
    text = shown_key(add(admin_client, "laptop"))
    found = KeyRing(load_keys()).find(text)
    assert found is not None
    assert found.name == "laptop"
    assert text not in page(admin_client)


def test_only_a_hash_of_the_key_is_stored(admin_client: Client) -> None:
    secret = shown_key(add(admin_client, "laptop")).split("_", 2)[2]
    (stored,) = ApiKey.objects.values()
    assert secret not in str(stored)


def test_no_page_shows_the_hash(admin_client: Client) -> None:
    create_key("laptop")
    (key,) = ApiKey.objects.all()
    for path in ("", f"{key.pk}/change/", f"{key.pk}/history/"):
        assert key.digest not in page(admin_client, path)


def test_a_key_is_told_apart_by_its_first_characters(admin_client: Client) -> None:
    create_key("laptop")
    (key,) = ApiKey.objects.all()
    assert f"pm_{key.lookup}_…" in page(admin_client)


def test_a_taken_name_is_refused_and_no_key_shown(admin_client: Client) -> None:
    create_key("laptop")
    shown = add(admin_client, "laptop")
    assert "API key with this Name already exists." in shown
    assert "<code>pm_" not in shown
    assert ApiKey.objects.count() == 1


def test_disabling_says_which_keys_it_has_disabled(admin_client: Client) -> None:
    create_key("laptop"), create_key("build")
    assert "Disabled: build, laptop." in act(admin_client, "disable", "laptop", "build")
    assert not ApiKey.objects.filter(enabled=True).exists()
    assert '<span class="word word-off">disabled</span>' in page(admin_client)


def test_a_key_that_is_as_wanted_already_is_named_as_such(admin_client: Client) -> None:
    create_key("laptop")
    shown = act(admin_client, "enable", "laptop")
    assert "Already enabled, or deleted: laptop." in shown
    assert "Enabled: " not in shown


def test_the_form_writes_only_what_it_has_changed(admin_client: Client) -> None:
    create_key("laptop")
    (key,) = ApiKey.objects.all()
    admin_client.post(f"{LIST}{key.pk}/change/", {"name": "desk", "enabled": "on", "digest": "0" * 64})
    (after,) = ApiKey.objects.all()
    assert (after.name, after.enabled, after.digest) == ("desk", True, key.digest)
