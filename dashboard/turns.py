"""The ledger in the admin: what became of every turn, and why. Nobody changes it here."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join

from accounts.models import Account
from dashboard.columns import NOTHING, Tone, coloured, duration, moment
from dashboard.paging import BoundedPaginator
from gateway.models import Turn
from gateway.turns.record import Attempt
from gateway.turns.turn import Outcome, Phase

if TYPE_CHECKING:
    # The stubs want a parameter that the class does not take at run time.
    ModelAdmin = admin.ModelAdmin[Turn]
else:
    ModelAdmin = admin.ModelAdmin

RUNNING = "running"
OUTCOME_TONES: dict[str, Tone] = {
    Outcome.COMPLETED: Tone.GOOD,
    Outcome.INCOMPLETE: Tone.WARNING,
    Outcome.FAILED: Tone.BAD,
    Outcome.CANCELLED: Tone.OFF,
    Outcome.REFUSED: Tone.WARNING,
    Outcome.CLIENT_GONE: Tone.OFF,
    Outcome.UPSTREAM_LOST: Tone.BAD,
    Outcome.INTERRUPTED: Tone.BAD,
}


class ChoiceFilter(admin.SimpleListFilter):
    """A filter by what it offers; anything else in the address counts as no choice."""

    def value(self) -> str | None:
        wanted = super().value()
        return wanted if any(wanted == offered for offered, _ in self.lookup_choices) else None


class OutcomeFilter(ChoiceFilter):
    """How turns ended, or that they still run."""

    title = "outcome"
    parameter_name = "outcome"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> Iterable[tuple[str, str]]:
        return [(RUNNING, RUNNING), *((outcome.value, outcome.value.replace("_", " ")) for outcome in Outcome)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Turn]) -> QuerySet[Turn]:
        wanted = self.value()
        return queryset if wanted is None else queryset.filter(outcome="" if wanted == RUNNING else wanted)


class AccountFilter(ChoiceFilter):
    """The accounts of the pool: asking the ledger for the names in it would read the whole of it."""

    title = "account"
    parameter_name = "account"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> Iterable[tuple[str, str]]:
        return [(str(pk), name) for pk, name in Account.objects.values_list("pk", "name")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Turn]) -> QuerySet[Turn]:
        wanted = self.value()
        return queryset if wanted is None else queryset.filter(account_id=int(wanted))


class DurationFilter(ChoiceFilter):
    """Turns that took long."""

    title = "duration"
    parameter_name = "longer"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> Iterable[tuple[str, str]]:
        return [("10", "more than 10 s"), ("60", "more than a minute"), ("600", "more than 10 minutes")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Turn]) -> QuerySet[Turn]:
        wanted = self.value()
        return queryset if wanted is None else queryset.filter(settled_ms__gt=int(wanted) * 1000)


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
    list_filter = (OutcomeFilter, AccountFilter, DurationFilter)
    # Only this column has an index to sort by.
    sortable_by = ("received",)
    ordering = ("-received_at",)
    search_fields = ("id", "response_id")
    search_help_text = "The id of a turn or of a response, in full."
    list_per_page = 50
    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    fieldsets = (
        (None, {"fields": ("id", "received", "ended", "cause")}),
        ("Why this account", {"fields": ("considered",)}),
        ("Way", {"fields": ("client", "account", "model", "session", "route", "way", "response_id", "replica")}),
        ("When", {"fields": ("phases",)}),
        ("How much", {"fields": ("tokens", "events", "request_bytes", "response_bytes", "generated")}),
    )
    readonly_fields = ("received", "ended", "client", "account", "considered", "way", "phases", "tokens")

    class Media:
        css = {"all": ["dashboard/admin.css"]}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Turn | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Turn | None = None) -> bool:
        return False

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

    @admin.display(description="received", ordering="received_at")
    def received(self, turn: Turn) -> str:
        return moment(turn.received_at)

    @admin.display(description="outcome")
    def ended(self, turn: Turn) -> str:
        """How it ended, and what the client was told where that was an error."""
        told = " ".join(str(part) for part in (turn.status, turn.code) if part)
        tone = OUTCOME_TONES.get(turn.outcome, Tone.OFF) if turn.outcome else Tone.BUSY
        return format_html('{} <span class="quiet">{}</span>', coloured(turn.outcome or RUNNING, tone), told)

    @admin.display(description="client")
    def client(self, turn: Turn) -> str:
        return turn.key_name or NOTHING

    @admin.display(description="account")
    def account(self, turn: Turn) -> str:
        return turn.account_name or NOTHING

    @admin.display(description="way")
    def way(self, turn: Turn) -> str:
        """The client's transport and the account's."""
        return f"{turn.downstream} → {turn.upstream or 'nowhere'}"

    @admin.display(description="first byte")
    def first_byte(self, turn: Turn) -> str:
        return duration(turn.streaming_ms)

    @admin.display(description="took")
    def took(self, turn: Turn) -> str:
        return duration(turn.settled_ms)

    @admin.display(description="tokens")
    def tokens(self, turn: Turn) -> str:
        if turn.input_tokens is None and turn.output_tokens is None:
            return NOTHING
        return f"{turn.input_tokens or 0} in, {turn.cached_tokens or 0} cached, {turn.output_tokens or 0} out"

    @admin.display(description="phases")
    def phases(self, turn: Turn) -> str:
        """Each phase the turn reached, counted from its arrival."""
        reached: dict[Phase, int | None] = {
            Phase.ADMITTED: turn.admitted_ms,
            Phase.ROUTED: turn.routed_ms,
            Phase.SENT: turn.sent_ms,
            Phase.STARTED: turn.started_ms,
            Phase.STREAMING: turn.streaming_ms,
            Phase.SETTLED: turn.settled_ms,
        }
        return ", ".join(f"{phase} after {duration(at)}" for phase, at in reached.items() if at is not None) or NOTHING

    @admin.display(description="considered")
    def considered(self, turn: Turn) -> str:
        """Every choice of an account, what spoke against the others, and what came of it."""
        attempts: list[Attempt] = turn.attempts
        if not attempts:
            return "No account was chosen."
        items = format_html_join("", "<li>{}</li>", ((_told(attempt),) for attempt in attempts))
        return format_html('<ol class="attempts">{}</ol>', items)


def _told(attempt: Attempt) -> str:
    """One choice, for a list."""
    passed_over = attempt.get("passed_over", {})
    return format_html(
        "<strong>{}</strong> over {}, of {}{}{}",
        attempt.get("account", NOTHING),
        attempt.get("transport", NOTHING),
        attempt.get("chosen_from", NOTHING),
        format_html("; then {}: {}", attempt.get("cause"), attempt.get("move")) if "cause" in attempt else "",
        format_html("<ul>{}</ul>", format_html_join("", "<li>not {}: {}</li>", passed_over.items()))
        if passed_over
        else "",
    )
