"""Several filters at once look no further back than they say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.test import RequestFactory

from dashboard.columns import moment
from dashboard.turns.admin import TurnAdmin
from dashboard.turns.listing import (
    AccountFilter,
    DurationFilter,
    KeyFilter,
    OutcomeFilter,
    Selection,
    SessionFilter,
    TurnList,
    narrowed,
)
from gateway.models import LONG_TURNS, Turn
from tests.dashboard.cast import account, turn

pytestmark = pytest.mark.django_db

NOW = datetime.now(UTC)
FILTERS = {
    each.parameter_name: each for each in (OutcomeFilter, AccountFilter, KeyFilter, DurationFilter, SessionFilter)
}


def chosen(**values: object) -> list[Selection]:
    request = RequestFactory().get("/", values)
    rows = TurnAdmin(Turn, admin.site)
    return [FILTERS[name](request, {name: [str(value)]}, Turn, rows) for name, value in values.items()]


def minutes_ago(minutes: float, **fields: object) -> Turn:
    return turn(received_at=NOW - timedelta(minutes=minutes), **fields)


def test_two_filters_let_through_what_each_of_them_does() -> None:
    ada, bo = account("ada").pk, account("bo").pk
    both = minutes_ago(1, account_id=ada, outcome="failed", settled_ms=61_000)
    minutes_ago(1, account_id=bo, outcome="failed"), minutes_ago(1, account_id=ada)
    for values in (
        {"outcome": "failed", "account": ada},
        {"account": ada, "outcome": "failed"},
        {"longer": 60, "account": ada},
        {"account": ada, "longer": 60},
        {"outcome": "failed", "longer": 60},
    ):
        found, reach = narrowed(Turn.objects.all(), chosen(**values))
        assert (list(found), reach) == ([both], None), values


def test_where_each_filter_leads_to_many_the_newest_of_them_are_looked_at() -> None:
    ada = account("ada").pk
    for minutes in range(6):
        minutes_ago(minutes, account_id=ada, session="thread-id:a")
    found, reach = narrowed(Turn.objects.all(), chosen(account=ada, session="thread-id:a"), at_most=3)
    assert reach == NOW - timedelta(minutes=3)
    assert {each.received_at for each in found} == {NOW - timedelta(minutes=minutes) for minutes in range(4)}


def test_the_filter_that_leads_to_few_is_followed_whichever_it_is() -> None:
    ada = account("ada").pk
    for minutes in range(6):
        minutes_ago(minutes, account_id=ada)
    oldest = minutes_ago(7, account_id=ada, outcome="failed")
    for values in ({"account": ada, "outcome": "failed"}, {"outcome": "failed", "account": ada}):
        found, reach = narrowed(Turn.objects.all(), chosen(**values), at_most=3)
        assert (list(found), reach) == ([oldest], None)
        plan = found.order_by("-received_at").explain()
        assert connection.vendor != "sqlite" or "turn_by_outcome" in plan


@pytest.mark.parametrize("seconds", [10, 60, 600])
def test_each_duration_has_an_index_in_the_order_of_the_list(seconds: int) -> None:
    assert seconds * 1000 in LONG_TURNS
    found, _ = narrowed(Turn.objects.all(), chosen(longer=seconds))
    plan = found.order_by("-received_at").explain()
    assert connection.vendor != "sqlite" or f"turn_over_{seconds}000_ms" in plan


class ShortList(TurnList):
    most_looked_at = 2


class ShortAdmin(TurnAdmin):
    def get_changelist(self, request: HttpRequest, **kwargs: object) -> type[TurnList]:
        return ShortList


def test_the_page_says_since_when_it_has_looked(admin_user: User) -> None:
    ada = account("ada").pk
    for minutes in range(4):
        minutes_ago(minutes, account_id=ada)
    request = RequestFactory().get("/", {"account": ada, "outcome": "completed"})
    request.user, request.session = admin_user, {}
    answer = ShortAdmin(Turn, admin.site).changelist_view(request)
    assert isinstance(answer, TemplateResponse)
    assert f"looked for since {moment(NOW - timedelta(minutes=2))}" in answer.rendered_content
