"""What the list of accounts can be narrowed to, in the words of the person who looks."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from accounts.circuit import CircuitState
from accounts.models import Account
from accounts.states import State

if TYPE_CHECKING:
    # The stubs want a parameter that the class does not take at run time.
    ModelAdmin = admin.ModelAdmin[Account]
else:
    ModelAdmin = admin.ModelAdmin


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


class CircuitFilter(admin.SimpleListFilter):
    """By what the account's recent turns have made of it."""

    title = "recent turns"
    parameter_name = "circuit"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> Iterable[tuple[str, str]]:
        return [("closed", "went well"), ("open", "failed: circuit open"), ("half open", "on probation: half open")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Account]) -> QuerySet[Account]:
        now = timezone.now()
        match self.value():
            case CircuitState.CLOSED:
                return queryset.filter(Q(circuit=None) | Q(circuit__state=CircuitState.CLOSED))
            case CircuitState.OPEN:
                return queryset.filter(circuit__state=CircuitState.OPEN, circuit__until__gt=now)
            case CircuitState.HALF_OPEN:
                # An ejection whose end has come lets a probe in, whether or not one has come already.
                return queryset.filter(
                    Q(circuit__state=CircuitState.HALF_OPEN)
                    | Q(circuit__state=CircuitState.OPEN, circuit__until__lte=now)
                )
            case _:
                return queryset


class UseFilter(admin.SimpleListFilter):
    """By when an account carried a turn last."""

    title = "last used"
    parameter_name = "used"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> Iterable[tuple[str, str]]:
        return [("hour", "within an hour"), ("day", "within a day"), ("idle", "not for a day"), ("never", "never")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Account]) -> QuerySet[Account]:
        now = timezone.now()
        match self.value():
            case "hour":
                return queryset.filter(last_used_at__gt=now - timedelta(hours=1))
            case "day":
                return queryset.filter(last_used_at__gt=now - timedelta(days=1))
            case "idle":
                return queryset.filter(last_used_at__lte=now - timedelta(days=1))
            case "never":
                return queryset.filter(last_used_at=None)
            case _:
                return queryset
