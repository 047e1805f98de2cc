"""The clients' keys in the admin: made, shown once, switched on and off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html

from dashboard.columns import Tone, ago, coloured, moment
from gateway.keys import PREFIX, new_key
from gateway.models import ApiKey

if TYPE_CHECKING:
    # The stubs want a parameter that the class does not take at run time.
    ModelAdmin = admin.ModelAdmin[ApiKey]
else:
    ModelAdmin = admin.ModelAdmin


class ApiKeyAdmin(ModelAdmin):
    """Of a key only a hash is stored, so its text can be shown when it is made and never again."""

    list_display = ("name", "shown", "is_on", "last_used", "made")
    list_filter = ("enabled",)
    search_fields = ("name", "lookup")
    actions = ("enable", "disable")
    fields = ("name", "enabled", "shown", "last_used", "made")
    readonly_fields = ("shown", "last_used", "made")

    class Media:
        css = {"all": ["dashboard/admin.css"]}

    def get_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> tuple[str, ...]:
        return self.fields if obj is not None else ("name",)

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
        return moment(key.created_at)

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
