"""The clients' keys in the admin: made, shown once, switched on and off."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.defaultfilters import pluralize
from django.utils import timezone
from django.utils.html import format_html, format_html_join

from dashboard.columns import NOTHING, Tone, ago, coloured, moment
from dashboard.keys.form import LIMITS, KeyForm
from dashboard.svg import sparkline
from dashboard.words import compact
from gateway.keys import PREFIX, new_key
from gateway.metering.limits import windows_at
from gateway.metering.store import read_usage, usage_of_days
from gateway.metering.usage import NOTHING as UNUSED
from gateway.metering.usage import Counts
from gateway.models import ApiKey

if TYPE_CHECKING:
    # The stubs want a parameter that the class does not take at run time.
    ModelAdmin = admin.ModelAdmin[ApiKey]
else:
    ModelAdmin = admin.ModelAdmin


DAYS = 30
# Reads what all processes have counted: no process has this id.
NOBODY = uuid.UUID(int=0)
FieldSets = Sequence[tuple[str | None, Mapping[str, Any]]]


def dollars(micros: int, unpriced: int) -> str:
    """A cost, and whether it is all of it: what has no price is unknown."""
    if not micros and not unpriced:
        return NOTHING
    if not micros:
        return format_html('<span title="{} turns have no price">unknown</span>', unpriced)
    amount = f"${micros / 1_000_000:,.2f}"
    if not unpriced:
        return amount
    return format_html('<span title="{} turns have no price">{} and more</span>', unpriced, amount)


def note_usage(keys: Sequence[ApiKey]) -> None:
    """Note on each row what the key has used on each day of the last month."""
    used = usage_of_days(timezone.now(), DAYS)
    for key in keys:
        key.days = used.get(key.pk, [])  # type: ignore[attr-defined]


def days_of(key: ApiKey) -> Sequence[Counts]:
    """What `note_usage` has noted."""
    days: Sequence[Counts] = getattr(key, "days", ())
    return days


class KeyList(ChangeList):
    """The list with what keys have used: one look for the whole page."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)
        note_usage(self.result_list)


class ApiKeyAdmin(ModelAdmin):
    """Of a key only a hash is stored, so its text can be shown when it is made and never again."""

    form = KeyForm
    list_display = ("name", "shown", "is_on", "used", "cost", "scope", "last_used")
    list_filter = ("enabled",)
    search_fields = ("name", "lookup")
    actions = ("enable", "disable")
    fieldsets = (
        (None, {"fields": ("name", "enabled", "shown", "last_used", "made")}),
        ("What it may use", {"fields": ("allowed_accounts", "allowed_models", "migrate_conversations")}),
        ("How much it may use", {"fields": LIMITS}),
        ("What it has used", {"fields": ("used", "cost", "windows")}),
    )
    readonly_fields = ("shown", "last_used", "made", "used", "cost", "windows")

    def get_fieldsets(  # type: ignore[override]  # the type that the stubs want has a private name
        self, request: HttpRequest, obj: ApiKey | None = None
    ) -> FieldSets:
        if obj is not None:
            return self.fieldsets
        return ((None, {"fields": ("name",)}), *self.fieldsets[1:3])

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return KeyList

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> ApiKey | None:
        key = super().get_object(request, object_id, from_field)
        if key is not None:
            note_usage([key])
        return key

    def save_model(self, request: HttpRequest, obj: ApiKey, form: forms.ModelForm[ApiKey], change: bool) -> None:
        """Make the key of a new client and show it; of an existing one write what the form has changed."""
        if change:
            if form.changed_data:
                obj.save(update_fields=[*form.changed_data, "updated_at"])
            return
        key = new_key()
        obj.lookup, obj.digest = key.lookup, key.digest
        obj.save()
        told = format_html("Copy the key of {} now, it is not shown again: <code>{}</code>", obj.name, key.text)
        self.message_user(request, told, messages.WARNING)

    @admin.display(description="tokens, 30 days")
    def used(self, key: ApiKey) -> str:
        """A line of the tokens of each day, today last."""
        days = days_of(key)
        tokens = [day.tokens for day in days]
        if not any(tokens):
            return NOTHING
        label = f"{sum(tokens):,} tokens in {sum(day.requests for day in days):,} requests of {DAYS} days"
        drawn = sparkline(tokens, label)
        return format_html(
            '<span class="key-usage" title="{}"><span>{}</span>{}</span>', label, compact(sum(tokens)), drawn
        )

    @admin.display(description="cost, 30 days")
    def cost(self, key: ApiKey) -> str:
        days = days_of(key)
        return dollars(sum(day.micros for day in days), sum(day.unpriced for day in days))

    @admin.display(description="scope and limits")
    def scope(self, key: ApiKey) -> str:
        parts = [f"{compact(limit.most)} {limit.unit} a {limit.span}" for limit in key.limits.windows]
        parts += [f"{key.concurrent_turns} turns at once"] if key.concurrent_turns is not None else []
        parts += (
            [f"{len(key.allowed_accounts)} account{pluralize(len(key.allowed_accounts))}"]
            if key.allowed_accounts
            else []
        )
        parts += [", ".join(key.allowed_models)] if key.allowed_models else []
        lines = format_html_join("", "<div>{}</div>", ((part,) for part in parts))
        return format_html('<div class="key-limits">{}</div>', lines) if parts else NOTHING

    @admin.display(description="now")
    def windows(self, key: ApiKey) -> str:
        """What counts in each window that is open now."""
        now = timezone.now().timestamp()
        counted = read_usage(NOBODY, [key.pk], now).counts
        told = ((window.span, counted.get((key.pk, window), UNUSED)) for window in windows_at(now))
        return format_html_join(
            "", "<div>this {}: {} requests, {} tokens</div>", ((span, use.requests, use.tokens) for span, use in told)
        )

    @admin.display(description="key", ordering="lookup")
    def shown(self, key: ApiKey) -> str:
        return format_html("<code>{}_{}_…</code>", PREFIX, key.lookup)

    @admin.display(description="state", ordering="enabled")
    def is_on(self, key: ApiKey) -> str:
        return coloured("enabled", Tone.GOOD) if key.enabled else coloured("disabled", Tone.OFF)

    @admin.display(description="last used", ordering="last_used_at")
    def last_used(self, key: ApiKey) -> str:
        return ago(key.last_used_at, timezone.now())

    @admin.display(description="made", ordering="created_at")
    def made(self, key: ApiKey) -> str:
        return format_html('<span title="{}">{}</span>', moment(key.created_at), f"{key.created_at:%Y-%m-%d}")

    @admin.action(description="Enable selected API keys", permissions=["change"])
    def enable(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        self._switch(request, queryset, True)

    @admin.action(description="Disable selected API keys", permissions=["change"])
    def disable(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        self._switch(request, queryset, False)

    def _switch(self, request: HttpRequest, queryset: QuerySet[ApiKey], on: bool) -> None:
        word = "enabled" if on else "disabled"
        done: list[str] = []
        left: list[str] = []
        for key in queryset:
            others = ApiKey.objects.filter(pk=key.pk, enabled=not on)
            if others.update(enabled=on, updated_at=timezone.now()):
                done.append(key.name)
                self.log_change(request, key, f"{word.capitalize()}.")
            else:
                left.append(key.name)
        if done:
            self.message_user(request, f"{word.capitalize()}: {', '.join(done)}.", messages.SUCCESS)
        if left:
            self.message_user(request, f"Already {word}, or deleted: {', '.join(left)}.", messages.WARNING)
