"""The admin's own order of pages."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from dashboard.site import rail
from tests.dashboard.cast import account


def model(word: str) -> dict[str, object]:
    return {"object_name": word, "name": word.lower(), "admin_url": "/x/"}


def test_the_rail_has_the_groups_in_their_order_and_the_rest_at_the_end() -> None:
    models = [model("User"), model("Turn"), model("Account")]
    assert [(group["name"], [each["object_name"] for each in group["models"]]) for group in rail(models)] == [
        ("Pool", ["Account"]),
        ("Traffic", ["Turn"]),
        ("Administration", ["User"]),
    ]


@pytest.mark.django_db
def test_the_rail_shows_what_one_may_look_at(client: Client) -> None:
    viewer = User.objects.create(username="viewer", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_turn"))
    client.force_login(viewer)
    shown = client.get("/admin/gateway/turn/").content.decode()
    assert 'href="/admin/gateway/turn/" aria-current="page"' in shown
    assert "/admin/accounts/account/" not in shown
    assert "/admin/lanes/" not in shown


@pytest.mark.django_db
def test_a_filter_says_what_it_is_set_to(admin_client: Client) -> None:
    shown = admin_client.get("/admin/accounts/account/?state=paused").content.decode()
    assert "State: <strong>paused</strong>" in shown
    assert "Clear filters" in shown


@pytest.mark.django_db
def test_what_was_done_in_the_admin_is_listed_and_nobody_changes_it(admin_client: Client) -> None:
    act = {"action": "pause", "_selected_action": [account("ada").pk]}
    admin_client.post("/admin/accounts/account/", act)
    shown = admin_client.get("/admin/admin/logentry/").content.decode()
    assert "Paused ada." in shown
    assert admin_client.get("/admin/admin/logentry/add/").status_code == 403


@pytest.mark.django_db
def test_a_list_without_rows_says_whether_anything_was_asked_for(admin_client: Client) -> None:
    assert "There is nothing here yet." in admin_client.get("/admin/gateway/turn/").content.decode()
    assert "Nothing matches what was asked for." in admin_client.get("/admin/gateway/turn/?q=x").content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize("view", ["history", "delete"])
def test_pages_about_a_row_lead_back_to_it_and_to_its_list(admin_client: Client, view: str) -> None:
    at = f"/admin/accounts/account/{account('ada').pk}"
    shown = admin_client.get(f"{at}/{view}/").content.decode()
    crumbs = shown[shown.index('<div class="breadcrumbs">') :].split("</div>")[0]
    assert re.findall(r'href="([^"]+)"', crumbs) == ["/admin/", "/admin/accounts/account/", f"{at}/change/"]
