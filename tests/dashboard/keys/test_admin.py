"""Keys are made here, shown once, and switched on and off."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from accounts.models import Account
from dashboard.columns import NOTHING
from dashboard.keys.admin import dollars
from gateway.keys import KeyRing
from gateway.metering.limits import KeyLimits, Limit, Span, Unit
from gateway.metering.store import load_prices
from gateway.models import ApiKey, KeyUsage
from gateway.rows import create_key, load_aliases, load_keys
from gateway.turns.names import Alias

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


def change(client: Client, key: ApiKey, **values: object) -> str:
    """Save the key's form with these values and nothing else in it."""
    return client.post(
        f"{LIST}{key.pk}/change/", {"name": key.name, "enabled": "on", **values}, follow=True
    ).content.decode()


def test_scopes_and_limits_are_set_by_the_form_and_count_for_the_gateway(admin_client: Client) -> None:
    account = Account.objects.create(name="ada", kind="openai", base_url="https://a.example/v1")
    create_key("laptop")
    key = ApiKey.objects.get(name="laptop")
    models = " gpt-5*\n\ngpt-5*\ngpt-6-sol "
    shown = change(
        admin_client, key, allowed_accounts=[account.pk], allowed_models=models, requests_per_day=5, concurrent_turns=2
    )
    (loaded,) = load_keys()
    assert (loaded.accounts, loaded.models) == (frozenset({account.pk}), ("gpt-5*", "gpt-6-sol"))
    assert loaded.limits == KeyLimits((Limit(Unit.REQUESTS, Span.DAY, 5),), turns=2)
    parts = ("5 requests a day", "2 turns at once", "1 account", "gpt-5*, gpt-6-sol")
    assert "".join(f"<div>{part}</div>" for part in parts) in shown


def test_an_account_that_was_deleted_stays_in_the_scope_and_lets_nobody_in(admin_client: Client) -> None:
    create_key("laptop")
    ApiKey.objects.update(allowed_accounts=[77])
    key = ApiKey.objects.get()
    assert "account 77, deleted" in page(admin_client, f"{key.pk}/change/")
    change(admin_client, key, allowed_accounts=[77])
    assert load_keys()[0].accounts == {77}


def test_a_limit_of_nothing_is_refused(admin_client: Client) -> None:
    create_key("laptop")
    assert "greater than or equal to 1" in change(admin_client, ApiKey.objects.get(), requests_per_day=0)


def test_the_list_draws_what_each_key_has_used_and_what_that_costs(admin_client: Client) -> None:
    create_key("laptop")
    key, today = ApiKey.objects.get(), timezone.now().replace(hour=0, minute=0, second=0, microsecond=0)
    for days, replica in ((0, 1), (0, 2), (3, 1)):
        KeyUsage.objects.create(
            key_id=key.pk,
            replica=uuid.UUID(int=replica),
            span="day",
            start=today - timedelta(days=days),
            requests=2,
            tokens=1000,
            cost_micros=1_250_000,
            unpriced=days,
        )
    shown = page(admin_client)
    assert "3,000 tokens in 6 requests of 30 days" in shown
    assert '<svg class="spark"' in shown
    assert "$3.75 and more" in shown
    assert "this day: 4 requests, 2000 tokens" in page(admin_client, f"{key.pk}/change/")


def test_prices_and_aliases_can_be_added(admin_client: Client) -> None:
    price = {"model": "gpt-5.5", "since": "2026-01-01", "input": "1.25", "output": "10"}
    alias = {"name": "gpt-5.5-high", "model": "gpt-5.5", "effort": "high"}
    for path, values in (("tokenprice", price), ("modelalias", alias)):
        admin_client.post(f"/admin/gateway/{path}/add/", values)
        assert "gpt-5.5" in admin_client.get(f"/admin/gateway/{path}/").content.decode()
    assert load_prices()[0].output == 10
    assert load_aliases() == [Alias("gpt-5.5-high", "gpt-5.5", "high")]


def test_a_cost_of_turns_without_a_price_is_unknown_and_not_zero() -> None:
    assert ">unknown<" in dollars(0, 2)
    assert dollars(0, 0) == NOTHING
    assert dollars(1_250_000, 0) == "$1.25"
