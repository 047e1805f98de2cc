"""The pool in the admin: which account may take turns, and if not, why and until when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django import forms
from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from accounts.models import Account
from accounts.states import State
from dashboard.columns import NOTHING, Tone, ago, ahead, coloured

if TYPE_CHECKING:
    # The stubs want a parameter that the class does not take at run time.
    ModelAdmin = admin.ModelAdmin[Account]
else:
    ModelAdmin = admin.ModelAdmin

TONES = {
    State.ACTIVE: Tone.GOOD,
    State.LIMITED: Tone.WARNING,
    State.PAUSED: Tone.OFF,
    State.NEEDS_LOGIN: Tone.BAD,
    State.DISABLED: Tone.OFF,
}


@dataclass(frozen=True, slots=True)
class Decision:
    """What the operator may decide: from which states, to which one, and how that is called."""

    past: str
    allowed: frozenset[State]
    state: State

    @property
    def reason(self) -> str:
        """What the account says of itself afterwards."""
        return "" if self.state is State.ACTIVE else f"{self.past} in the admin"

    def apply(self, account: Account) -> bool:
        """Write the new state if the account is still in one that allows it; whether it was."""
        unchanged = Account.objects.filter(pk=account.pk, state__in=self.allowed)
        return unchanged.update(state=self.state, state_reason=self.reason, state_until=None) == 1


PAUSE = Decision("paused", frozenset({State.ACTIVE, State.LIMITED}), State.PAUSED)
RESUME = Decision("resumed", frozenset({State.PAUSED, State.DISABLED, State.LIMITED}), State.ACTIVE)
DISABLE = Decision("disabled", frozenset(State) - {State.DISABLED}, State.DISABLED)


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
    actions = ("pause", "resume", "disable")
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
        self._decide(request, queryset, PAUSE)

    @admin.action(description="Resume: take turns again, an earlier limit forgotten", permissions=["change"])
    def resume(self, request: HttpRequest, queryset: QuerySet[Account]) -> None:
        self._decide(request, queryset, RESUME)

    @admin.action(description="Disable: out of the pool for good", permissions=["change"])
    def disable(self, request: HttpRequest, queryset: QuerySet[Account]) -> None:
        self._decide(request, queryset, DISABLE)

    def _decide(self, request: HttpRequest, queryset: QuerySet[Account], decision: Decision) -> None:
        done: list[str] = []
        left: list[str] = []
        for account in queryset:
            if decision.apply(account):
                done.append(account.name)
                self.log_change(request, account, f"{decision.past.capitalize()}.")
            else:
                left.append(account.name)
        if done:
            self.message_user(request, f"{decision.past.capitalize()}: {', '.join(done)}.", messages.SUCCESS)
        if left:
            self.message_user(request, f"Left as they are: {_with_states(left)}.", messages.WARNING)


def _with_states(names: list[str]) -> str:
    """Each name with the state that spoke against the action, read anew: it may have changed since the page was."""
    states = dict(Account.objects.filter(name__in=names).values_list("name", "state"))
    return ", ".join(f"{name} ({states.get(name, 'deleted').replace('_', ' ')})" for name in names)
