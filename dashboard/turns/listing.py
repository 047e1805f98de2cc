"""What the list of turns can be narrowed to, and how that stays quick in a ledger of any length.

Each filter alone has an index in the order of the list. Of several filters a database follows one index and looks at
every row that it leads to, which may be most of the ledger. So the list says which one, the first that leads to few
rows, and hides the others' columns from the planner. Where all lead to many it looks no further back than
`MOST_LOOKED_AT` of them and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import F, Q, QuerySet, Value
from django.db.models.functions import Concat
from django.http import HttpRequest
from django.utils import timezone

from accounts.models import Account
from dashboard.columns import session_name
from gateway.models import ApiKey, Turn
from gateway.turns.turn import Outcome

if TYPE_CHECKING:
    # The stubs want a parameter that the class does not take at run time.
    ModelAdmin = admin.ModelAdmin[Turn]
else:
    ModelAdmin = admin.ModelAdmin

RUNNING = "running"
MOST_LOOKED_AT = 50_000
# What the list shows of a turn: less than half of the columns, and not the attempts, which are by far the longest.
SHOWN = (
    "id",
    "received_at",
    "outcome",
    "status",
    "code",
    "key_name",
    "account_name",
    "streaming_ms",
    "settled_ms",
    "model",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "downstream",
    "upstream",
)


class ChoiceFilter(admin.SimpleListFilter):
    """A filter by what it offers; anything else in the address counts as no choice."""

    def value(self) -> str | None:
        wanted = super().value()
        return wanted if any(wanted == offered for offered, _ in self.lookup_choices) else None


class Selection(ChoiceFilter):
    """A filter by a column that has an index together with the time. The list puts several of them together."""

    column: str
    lookup = "exact"
    # Whether it usually leads to much of the ledger; then it is tried after the others.
    broad = False

    def queryset(self, request: HttpRequest, queryset: QuerySet[Turn]) -> QuerySet[Turn]:
        return queryset

    def given(self) -> Any:
        """What the column is compared with; None for no choice."""
        wanted = self.value()
        return None if wanted is None else int(wanted)

    def by_index(self) -> Q:
        """The condition, for the planner to follow."""
        return Q(**{f"{self.column}__{self.lookup}": self.given()})

    def by_looking(self, queryset: QuerySet[Turn]) -> QuerySet[Turn]:
        """The same condition in a form that no index answers."""
        hidden = F(self.column) + Value(0)
        name = self.parameter_name or self.column
        return queryset.alias(**{name: hidden}).filter(**{f"{name}__{self.lookup}": self.given()})


class TextSelection(Selection):
    """One by a column of text."""

    def given(self) -> str | None:
        return self.value()

    def by_looking(self, queryset: QuerySet[Turn]) -> QuerySet[Turn]:
        name = f"{self.column}_text"
        return queryset.alias(**{name: Concat(F(self.column), Value(""))}).filter(**{name: self.given()})


class OutcomeFilter(TextSelection):
    """How turns ended, or that they still run."""

    title = "outcome"
    parameter_name = "outcome"
    column = "outcome"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> Iterable[tuple[str, str]]:
        return [(RUNNING, RUNNING), *((outcome.value, outcome.value.replace("_", " ")) for outcome in Outcome)]

    def given(self) -> str | None:
        return "" if self.value() == RUNNING else self.value()


class AccountFilter(Selection):
    """The accounts of the pool: asking the ledger for the names in it would read the whole of it."""

    title = "account"
    parameter_name = "account"
    column = "account_id"
    broad = True

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> Iterable[tuple[str, str]]:
        return [(str(pk), name) for pk, name in Account.objects.values_list("pk", "name")]


class KeyFilter(Selection):
    """The keys there are, likewise."""

    title = "client"
    parameter_name = "key"
    column = "key_id"
    broad = True

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> Iterable[tuple[str, str]]:
        return [(str(pk), name) for pk, name in ApiKey.objects.values_list("pk", "name")]


class DurationFilter(Selection):
    """Turns that took long: each choice has an index of its own (`gateway.models.LONG_TURNS`)."""

    title = "duration"
    parameter_name = "longer"
    column = "settled_ms"
    lookup = "gt"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> Iterable[tuple[str, str]]:
        return [("10", "more than 10 s"), ("60", "more than a minute"), ("600", "more than 10 minutes")]

    def given(self) -> int | None:
        wanted = self.value()
        return None if wanted is None else int(wanted) * 1000


class SessionFilter(TextSelection):
    """The turns of one conversation, to which its page leads. It is offered only where it is set."""

    title = "session"
    parameter_name = "session"
    column = "session"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> Iterable[tuple[str, str]]:
        wanted = request.GET.get(self.parameter_name, "")
        return [(wanted, session_name(wanted))] if wanted else []


class PeriodFilter(ChoiceFilter):
    """When turns came; what is older than the list reaches begins where a period ends."""

    title = "received"
    parameter_name = "received"
    HOURS: Mapping[str, int] = {"1h": 1, "24h": 24, "7d": 168}

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> Iterable[tuple[str, str]]:
        return [
            ("1h", "within an hour"),
            ("24h", "within 24 hours"),
            ("7d", "within 7 days"),
            ("before-24h", "more than 24 hours ago"),
            ("before-7d", "more than 7 days ago"),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Turn]) -> QuerySet[Turn]:
        wanted = self.value()
        if wanted is None:
            return queryset
        limit = timezone.now() - timedelta(hours=self.HOURS[wanted.removeprefix("before-")])
        before = wanted.startswith("before-")
        return queryset.filter(received_at__lt=limit) if before else queryset.filter(received_at__gte=limit)


class TurnList(ChangeList):
    """The list, whose rows cost as little as they can: there are fifty of them. `reach` is where it stopped looking."""

    reach: datetime | None = None
    most_looked_at = MOST_LOOKED_AT

    def get_queryset(self, request: HttpRequest, *given: Any, **named: Any) -> QuerySet[Turn]:
        turns = super().get_queryset(request, *given, **named).only(*SHOWN)
        chosen = [each for each in self.filter_specs if isinstance(each, Selection) and each.given() is not None]
        turns, self.reach = narrowed(turns, chosen, self.most_looked_at)
        return turns

    def url_for_result(self, result: Turn) -> str:  # type: ignore[override]
        """The page of a turn, beside the list's own."""
        return f"{result.pk}/change/"


def narrowed(
    turns: QuerySet[Turn], chosen: Sequence[Selection], at_most: int = MOST_LOOKED_AT
) -> tuple[QuerySet[Turn], datetime | None]:
    """The turns that all of `chosen` let through, and since when they were looked for, None for ever."""
    if len(chosen) < 2:
        return turns.filter(*(each.by_index() for each in chosen)), None
    ways = sorted(chosen, key=lambda each: each.broad)
    leads, reach = _best(turns, ways, at_most)
    found = turns.filter(leads.by_index())
    if reach is not None:
        found = found.filter(received_at__gte=reach)
    for each in ways:
        if each is not leads:
            found = each.by_looking(found)
    return found, reach


def _best(turns: QuerySet[Turn], ways: Sequence[Selection], at_most: int) -> tuple[Selection, datetime | None]:
    """The first filter that leads to no more than so many turns, else the first and how far back so many are."""
    first: datetime | None = None
    for each in ways:
        reach = _reach(turns.filter(each.by_index()), at_most)
        if reach is None:
            return each, None
        first = first or reach
    return ways[0], first


def _reach(turns: QuerySet[Turn], at_most: int) -> datetime | None:
    """When the last of so many turns came, None where there are fewer. Read from the index alone."""
    return turns.order_by("-received_at").values_list("received_at", flat=True)[at_most : at_most + 1].first()
