"""The ledger in the admin: what became of every turn, and why. Nobody changes it here."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html

from dashboard import svg
from dashboard.columns import NOTHING, coloured, duration, moment, session_name
from dashboard.paging import BoundedPaginator
from dashboard.turns.listing import (
    RUNNING,
    AccountFilter,
    DurationFilter,
    KeyFilter,
    OutcomeFilter,
    PeriodFilter,
    SessionFilter,
    TurnList,
)
from dashboard.turns.outcomes import tone_of
from dashboard.turns.story import choices, sentence, stages
from dashboard.words import compact, dollars, size
from gateway.models import Replica, Session, Turn

if TYPE_CHECKING:
    # The stubs want a parameter that the class does not take at run time.
    ModelAdmin = admin.ModelAdmin[Turn]
else:
    ModelAdmin = admin.ModelAdmin


class TurnAdmin(ModelAdmin):
    """Read-only, newest first. Costs a page of rows, however long the ledger is."""

    list_display = (
        "received",
        "ended",
        "client",
        "account",
        "first_byte",
        "took",
        "model",
        "tokens",
        "way",
    )
    list_filter = (OutcomeFilter, AccountFilter, KeyFilter, PeriodFilter, DurationFilter, SessionFilter)
    # Only this column has an index to sort by.
    sortable_by = ("received",)
    ordering = ("-received_at",)
    search_fields = ("id", "response_id")
    search_help_text = "The id of a turn or of a response, in full."
    list_per_page = 50
    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Turn | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Turn | None = None) -> bool:
        return False

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return TurnList

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *given: Any, **named: Any
    ) -> HttpResponse:
        """The page of one turn."""
        return super().render_change_form(request, {**context, **told(named["obj"])}, *given, **named)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Turn], search_term: str
    ) -> tuple[QuerySet[Turn], bool]:
        """Look a turn up by an id with an index, instead of searching through every row."""
        term = search_term.strip()
        if not term:
            return queryset, False
        try:
            return queryset.filter(pk=uuid.UUID(term)), False
        except ValueError:
            return queryset.filter(response_id=term), False

    @admin.display(description="received (UTC)", ordering="received_at")
    def received(self, turn: Turn) -> str:
        return f"{turn.received_at.astimezone(UTC):%b %d, %H:%M:%S}"

    @admin.display(description="outcome")
    def ended(self, turn: Turn) -> str:
        """How it ended, and what the client was told where that was an error."""
        told = " ".join(str(part) for part in (turn.status, turn.code) if part)
        pill = coloured(turn.outcome or RUNNING, tone_of(turn))
        return format_html('{} <span class="quiet">{}</span>', pill, told)

    @admin.display(description="client")
    def client(self, turn: Turn) -> str:
        return turn.key_name or NOTHING

    @admin.display(description="account")
    def account(self, turn: Turn) -> str:
        return turn.account_name or NOTHING

    @admin.display(description="way")
    def way(self, turn: Turn) -> str:
        """The client's transport and the account's, in one word where they are the same."""
        return turn.downstream if turn.downstream == turn.upstream else f"{turn.downstream} → {turn.upstream or 'none'}"

    @admin.display(description="first byte")
    def first_byte(self, turn: Turn) -> str:
        return duration(turn.streaming_ms)

    @admin.display(description="took")
    def took(self, turn: Turn) -> str:
        return duration(turn.settled_ms)

    @admin.display(description="tokens in / cached / out")
    def tokens(self, turn: Turn) -> str:
        if turn.input_tokens is None and turn.output_tokens is None:
            return NOTHING
        counted = (turn.input_tokens, turn.cached_tokens, turn.output_tokens)
        return "{} / {} / {}".format(*(compact(count or 0) for count in counted))


def told(turn: Turn) -> dict[str, Any]:
    """What the page of a turn shows."""
    found = stages(turn)
    whole = max((stage.end for stage in found), default=0)
    bars = [(stage, svg.stretch(stage.begin, stage.end, whole or 1, bad=stage.bad)) for stage in found]
    return {
        "sentence": sentence(turn),
        "tone": tone_of(turn).value,
        "received": moment(turn.received_at),
        "stages": bars,
        "half": duration(whole // 2),
        "whole": duration(whole),
        "choices": choices(turn),
        "groups": _facts(turn),
    }


def session_link(turn: Turn) -> str:
    """The turn's conversation, with the way to its page while it is remembered."""
    if not turn.session:
        return NOTHING
    kind, _, digest = turn.session.partition(":")
    session = Session.objects.filter(client=turn.key_id or 0, kind=kind, digest=digest).values_list("pk").first()
    name = session_name(turn.session)
    if session is None:
        return f"{name}, forgotten since"
    return format_html('<a href="{}">{}</a>', reverse("admin:gateway_session_change", args=session), name)


def _replica(turn: Turn) -> str:
    """The process that carried it, by name while its row is there."""
    known = Replica.objects.filter(pk=turn.replica).first()
    return str(known or turn.replica)


def _facts(turn: Turn) -> Sequence[tuple[str, Sequence[tuple[str, object]]]]:
    answer = " ".join(str(part) for part in (turn.status, turn.code) if part)
    numbers = {
        "input": turn.input_tokens,
        "of it cached": turn.cached_tokens,
        "output": turn.output_tokens,
        "of it reasoning": turn.reasoning_tokens,
    }
    return (
        (
            "Answer",
            (
                ("outcome", turn.outcome.replace("_", " ") or RUNNING),
                ("error", answer or "none"),
                ("cause", turn.cause.replace("_", " ") or NOTHING),
                ("response", turn.response_id or NOTHING),
            ),
        ),
        (
            "Tokens",
            (
                *((name, NOTHING if count is None else f"{count:,}") for name, count in numbers.items()),
                ("cost", NOTHING if turn.cost_micros is None else dollars(turn.cost_micros)),
            ),
        ),
        (
            "Traffic",
            (
                ("request", size(turn.request_bytes)),
                ("response", size(turn.response_bytes)),
                ("events", f"{turn.events:,}"),
                ("model asked for", turn.asked_model or turn.model or NOTHING),
                ("route", turn.operation or turn.route),
            ),
        ),
        (
            "Where",
            (
                ("account", turn.account_name or NOTHING),
                ("session", session_link(turn)),
                ("replica", _replica(turn)),
            ),
        ),
    )
