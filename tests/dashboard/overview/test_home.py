"""The overview, from a fresh install to a pool in trouble."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import timezone

from dashboard.overview.home import FRAGMENTS, QUICK, Home, fragments
from dashboard.overview.series import SPANS
from gateway.watch.rollup import roll_up
from tests.dashboard.cast import SECRET, account, limited, turn

pytestmark = pytest.mark.django_db


def page(client: Client, query: str = "") -> str:
    answer = client.get(f"/admin/{query}")
    assert answer.status_code == 200
    return answer.content.decode()


def test_a_fresh_install_says_what_to_do_first(admin_client: Client) -> None:
    shown = page(admin_client)
    assert "No account yet." in shown
    assert "Add the first account" in shown
    assert "No turn yet." in shown
    assert "nothing to fail yet" in shown


def test_a_pool_that_is_limited_as_a_whole_says_so_and_until_when(admin_client: Client) -> None:
    limited("ada", hours=2), limited("bo", hours=1.01)
    shown = page(admin_client)
    assert "No account can take a turn now." in shown
    assert "back in 1 h" in shown
    assert "usage limit reached" in shown


def test_the_figures_are_those_of_the_span(admin_client: Client) -> None:
    account("ada")
    now = timezone.now()
    for hours in (0.01, 5):
        turn(settled_at=now - timedelta(hours=hours), input_tokens=1000, cached_tokens=900, output_tokens=500)
    turn(
        settled_at=now,
        outcome="refused",
        cause="usage_limit",
        input_tokens=None,
        cached_tokens=None,
        output_tokens=None,
    )
    roll_up(now)
    for span, turns, tokens in (("1h", 2, "1.5k"), ("24h", 3, "3k")):
        home = Home(SPANS[span], now)
        assert [figure.value for figure in home.figures][:2] == [str(turns), tokens]
        assert "90 % of the input was cached" in home.figures[1].note
        assert "mostly usage limit (1)" in home.figures[3].note
    assert 'href="?span=1h" aria-current="true"' in page(admin_client, "?span=1h")


def test_an_unknown_span_is_the_usual_one_which_grows_with_the_ledger(admin_client: Client) -> None:
    assert 'href="?span=1h" aria-current="true"' in page(admin_client, "?span=99y")
    now = timezone.now()
    turn(settled_at=now - timedelta(hours=3))
    roll_up(now)
    assert 'href="?span=24h" aria-current="true"' in page(admin_client, "?span=99y")


def test_capacity_is_split_by_account_and_says_who_tells_none(admin_client: Client) -> None:
    now = timezone.now().timestamp()
    window = {"seen_at": now, "used_percent": 25.0, "minutes": 300, "resets_at": now + 9000}
    account("ada", quota={"windows": {"codex/primary": window}}), account("bo")
    short, long = Home(SPANS["1h"], timezone.now()).rings
    assert (short.left, [part for _, part in short.parts], short.silent) == ("75 %", ["75 %"], 1)
    assert (long.left, long.parts) == ("–", [])  # noqa: RUF001
    assert "1 more account says nothing of it." in page(admin_client)


def test_a_running_turn_is_among_the_newest(admin_client: Client) -> None:
    turn(outcome="", settled_ms=None, received_at=timezone.now())
    assert "running" in page(admin_client)


def test_the_overview_shows_no_secret(admin_client: Client) -> None:
    account("ada")
    assert SECRET not in page(admin_client)


def test_the_parts_of_the_page_are_the_fragments_that_replace_them(admin_client: Client) -> None:
    shown = page(admin_client)
    assert all(f'id="live-{name}"' in shown for name in FRAGMENTS)
    assert set(QUICK) < set(FRAGMENTS)
    assert fragments(Home(SPANS["1h"], timezone.now()), QUICK).keys() == set(QUICK)


def test_whoever_may_not_look_at_accounts_and_turns_gets_neither(client: Client) -> None:
    viewer = User.objects.create(username="viewer", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_account"))
    client.force_login(viewer)
    account("ada")
    shown = page(client)
    assert "You may not look at accounts and turns" in shown
    assert "ada" not in shown
