"""The pool in the admin: which account may take turns, and if not, why and until when."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from django import forms
from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from accounts import control
from accounts.control import Happened
from accounts.models import Account
from accounts.states import State
from dashboard.columns import NOTHING, Tone, ago, ahead, coloured

if TYPE_CHECKING:
    # The stubs want a parameter that the class does not take at run time.
    ModelAdmin = admin.ModelAdmin[Account]
else:
    ModelAdmin = admin.ModelAdmin

Decide = Callable[[int, str], Happened]

TONES = {
    State.ACTIVE: Tone.GOOD,
    State.LIMITED: Tone.WARNING,
    State.PAUSED: Tone.OFF,
    State.NEEDS_LOGIN: Tone.BAD,
    State.DISABLED: Tone.OFF,
}


class StateFilter(admin.SimpleListFilter):
    """By the state that counts now: a limit whose end has come is over."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> Iterable[tuple[str, str]]:
        return [(state.value, state.value.replace("_", " ")) for state in State]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Account]) -> QuerySet[Account]:
        over = Q(state=State.LIMITED, state_until__lte=timezone.now())
        match self.value():
            case None:
                return queryset
            case State.ACTIVE:
                return queryset.filter(Q(state=State.ACTIVE) | over)
            case state:
                return queryset.filter(Q(state=state) & ~over)


class AccountAdmin(ModelAdmin):
    """Accounts are added by command, so that no secret passes a form; the state is changed by actions alone."""

    list_display = (
        "name",
        "kind",
        "state_now",
        "until",
        "reason",
        "priority",
        "transport",
        "plan_type",
        "last_used",
    )
    list_filter = (StateFilter, "kind", "transport")
    search_fields = ("name", "email")
    actions = ("pause", "resume", "disable", "enable")
    fieldsets = (
        (None, {"fields": ("name", "kind", "base_url", "state_now", "until", "reason")}),
        ("How it is used", {"fields": ("priority", "transport", "max_streams")}),
        (
            "Who it is",
            {"fields": ("signed_in", "account_id", "email", "plan_type", "last_used", "created_at", "updated_at")},
        ),
    )
    # The base URL is where the credentials are sent: the command that gives them sets it as well.
    readonly_fields = (
        "name",
        "kind",
        "base_url",
        "state_now",
        "until",
        "reason",
        "signed_in",
        "account_id",
        "email",
        "plan_type",
        "last_used",
        "created_at",
        "updated_at",
    )

    class Media:
        css = {"all": ["dashboard/admin.css"]}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Account]:
        return super().get_queryset(request).defer("credentials")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Account, form: forms.ModelForm[Account], change: bool) -> None:
        """Write what the form has changed and nothing else: the traffic writes states at the same time."""
        obj.save(update_fields=form.changed_data)

    @admin.display(description="state", ordering="state")
    def state_now(self, account: Account) -> str:
        state = account.state_at(timezone.now())
        return coloured(state.value, TONES[state])

    @admin.display(description="until", ordering="state_until")
    def until(self, account: Account) -> str:
        now = timezone.now()
        if account.state_until is None or account.state_until <= now:
            return NOTHING
        return ahead(account.state_until, now)

    @admin.display(description="why")
    def reason(self, account: Account) -> str:
        active = account.is_usable(timezone.now())
        return NOTHING if active else account.state_reason or NOTHING

    @admin.display(description="credentials")
    def signed_in(self, account: Account) -> str:
        return "stored, sealed" if account.credentials else "none; run manage.py add_account with --replace"

    @admin.display(description="last used", ordering="last_used_at")
    def last_used(self, account: Account) -> str:
        return ago(account.last_used_at, timezone.now())

    @admin.action(description="Pause: no new turns until resumed", permissions=["change"])
    def pause(self, request: HttpRequest, queryset: QuerySet[Account]) -> None:
        self._decide(request, queryset, control.pause)

    @admin.action(description="Resume: take turns again, an earlier limit forgotten", permissions=["change"])
    def resume(self, request: HttpRequest, queryset: QuerySet[Account]) -> None:
        self._decide(request, queryset, control.resume)

    @admin.action(description="Disable: out of the pool until enabled", permissions=["change"])
    def disable(self, request: HttpRequest, queryset: QuerySet[Account]) -> None:
        self._decide(request, queryset, control.disable)

    @admin.action(description="Enable: back into the pool", permissions=["change"])
    def enable(self, request: HttpRequest, queryset: QuerySet[Account]) -> None:
        self._decide(request, queryset, control.enable)

    def _decide(self, request: HttpRequest, queryset: QuerySet[Account], decide: Decide) -> None:
        """Decide about each account, tell the operator what came of it, and keep who it was."""
        for account in queryset:
            happened = decide(account.id, request.user.get_username())
            if happened.changed:
                self.log_change(request, account, happened.text)
            self.message_user(request, happened.text, messages.SUCCESS if happened.changed else messages.WARNING)
