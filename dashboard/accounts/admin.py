"""The pool in the admin: which account may take turns, what it carries, what happened to it, what can be done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.views.decorators.debug import sensitive_post_parameters

from accounts import control
from accounts.asking import Asker, each
from accounts.circuit import CircuitState
from accounts.control import Happened
from accounts.errand import refresh_account, with_asker
from accounts.models import Account
from accounts.probes import probe_account
from accounts.proxy import InvalidProxy, clean_proxy
from accounts.states import Kind, State
from accounts.store import set_proxy
from dashboard.accounts.adding import add_page
from dashboard.accounts.columns import AccountColumns
from dashboard.accounts.filters import CircuitFilter, StateFilter, UseFilter
from dashboard.accounts.sign_in import ASKS, sign_in_page
from dashboard.overview.pool import carried_by, dead_after
from gateway.watch.snapshot import LiveAccount
from gateway.watch.store import snapshots

if TYPE_CHECKING:
    ModelForm = forms.ModelForm[Account]
else:
    ModelForm = forms.ModelForm

Decide = Callable[[int, str], Happened]
Ask = Callable[[Asker, int, str], Awaitable[Happened]]

# Seconds that a page waits for what it asks of upstreams; what is not done by then is told as that.
PATIENCE = 25.0
# So many events are on an account's page; the list of events has all.
SHOWN_EVENTS = 50


def note_live(accounts: Sequence[Account]) -> None:
    """Note on each row what all processes carry for the account now."""
    carried = carried_by(snapshots(timezone.now(), dead_after()).values())
    for account in accounts:
        account.live = carried.get(str(account.id), LiveAccount())  # type: ignore[attr-defined]


def suited(account: Account, now: datetime) -> list[tuple[str, str]]:
    """What may be done with an account as it is now: the actions of the list that its page offers as buttons."""
    match account.state_at(now):
        case State.PAUSED:
            acts = [("resume", "Resume")]
        case State.DISABLED:
            acts = [("enable", "Enable")]
        case State.LIMITED:
            acts = [("resume", "Forget the limit"), ("pause", "Pause")]
        case State.NEEDS_LOGIN:
            acts = []
        case _:
            acts = [("pause", "Pause"), ("drain", "Drain")]
    if account.circuit_at(now) is not CircuitState.CLOSED:
        acts.append(("reset_circuit", "Reset the circuit"))
    if account.kind == Kind.CODEX:
        acts.append(("refresh_token", "Refresh the token"))
    return [*acts, ("probe", "Probe")]


class AccountList(ChangeList):
    """The list with what accounts carry now: one look for the whole page."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)
        note_live(self.result_list)


class AccountForm(ModelForm):
    """How an account is used. The proxy's URL goes in and never comes out, since it may hold a password."""

    new_proxy = forms.CharField(
        required=False,
        max_length=2000,
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
        help_text="http://, https:// or socks5://name:password@host:port. All that goes to the account goes by it or "
        "not at all. Empty leaves it as it is.",
    )
    no_proxy = forms.BooleanField(required=False, label="No proxy any more")

    class Meta:
        model = Account
        fields = ("priority", "transport", "max_streams")

    def clean_new_proxy(self) -> str:
        """The URL in its one form, empty for no change."""
        text = str(self.cleaned_data["new_proxy"])
        try:
            return clean_proxy(text) if text else ""
        except InvalidProxy as error:
            raise forms.ValidationError(str(error)) from None


class AccountAdmin(AccountColumns):
    """States, circuits and tokens are changed by actions alone, each of which looks first and leaves an event."""

    form = AccountForm
    list_display = (
        "name",
        "state_told",
        "circuit_now",
        "short_window",
        "long_window",
        "priority",
        "active",
        "waiting",
        "last_used",
        "what",
    )
    list_filter = (StateFilter, CircuitFilter, UseFilter, "kind", "transport")
    list_select_related = ("circuit",)
    search_fields = ("name", "email")
    actions = (
        "pause",
        "resume",
        "drain",
        "disable",
        "enable",
        "open_circuit",
        "reset_circuit",
        "refresh_token",
        "probe",
    )
    fieldsets = (
        (None, {"fields": ("name", "kind", "base_url", "state_now", "reason")}),
        ("What it does now", {"fields": ("active", "waiting", "lanes", "last_used")}),
        ("How it fares", {"fields": ("circuit_now", "circuit_told", "short_window", "long_window", "catalogue")}),
        ("How it is used", {"fields": ("priority", "transport", "max_streams", "way", "new_proxy", "no_proxy")}),
        ("Who it is", {"fields": ("signed_in", "account_id", "email", "plan_type", "created_at", "updated_at")}),
    )
    # The base URL is where the credentials are sent: whoever gives them sets it as well.
    readonly_fields = (
        "name",
        "kind",
        "base_url",
        "state_now",
        "reason",
        "active",
        "waiting",
        "lanes",
        "circuit_now",
        "circuit_told",
        "short_window",
        "long_window",
        "catalogue",
        "way",
        "signed_in",
        "account_id",
        "email",
        "plan_type",
        "last_used",
        "created_at",
        "updated_at",
    )

    class Media:
        css = {"all": ["dashboard/board.css", "dashboard/accounts.css"]}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Account]:
        return super().get_queryset(request).select_related("circuit").defer("credentials")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return AccountList

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Account | None:
        account = super().get_object(request, object_id, from_field)
        if account is not None:
            note_live([account])
        return account

    def get_urls(self) -> list[URLPattern]:
        own = path("sign-in/", self.admin_site.admin_view(self.sign_in_view), name="accounts_account_sign_in")
        return [own, *super().get_urls()]

    @method_decorator(sensitive_post_parameters("auth_json", "api_key", "proxy"))
    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """Three ways in place of Django's form: a file, a key, or a sign-in."""
        return add_page(self, request)

    def sign_in_view(self, request: HttpRequest) -> HttpResponse:
        """The page that waits for a sign-in by code."""
        answer = sign_in_page(self, request)
        return JsonResponse({"to": answer.headers.get("Location", "")}) if ASKS in request.headers else answer

    @method_decorator(sensitive_post_parameters("new_proxy"))
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        account = self.get_object(request, object_id)
        events = [] if account is None else account.events.all()[:SHOWN_EVENTS]
        known = {
            "account_events": events,
            "acts": [] if account is None else suited(account, timezone.now()),
            "list_address": reverse("admin:accounts_account_changelist"),
        }
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **known})

    def save_model(self, request: HttpRequest, obj: Account, form: forms.ModelForm[Account], change: bool) -> None:
        """Write what the form has changed and nothing else: the traffic writes states at the same time."""
        written = [name for name in form.changed_data if name in AccountForm.Meta.fields]
        obj.save(update_fields=written)
        new, none = form.cleaned_data.get("new_proxy", ""), form.cleaned_data.get("no_proxy", False)
        if new or none:
            set_proxy(obj.name, "" if none else new, settings.TOKEN_KEYS, by=request.user.get_username())

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Account], *given: Any, **named: Any
    ) -> HttpResponse | None:
        """After a button of an account's own page go back there, not to the list."""
        answer = super().response_action(request, queryset, *given, **named)
        back = request.POST.get("back", "")
        return redirect("admin:accounts_account_change", back) if answer is not None and back.isdecimal() else answer

    @admin.action(description="Pause: no new turns until resumed", permissions=["change"])
    def pause(self, request: HttpRequest, queryset: QuerySet[Account]) -> None:
        self._decide(request, queryset, control.pause)

    @admin.action(description="Resume: take turns again, an earlier limit forgotten", permissions=["change"])
    def resume(self, request: HttpRequest, queryset: QuerySet[Account]) -> None:
        self._decide(request, queryset, control.resume)

    @admin.action(description="Drain: pause, and tell when the last turn has ended", permissions=["change"])
    def drain(self, request: HttpRequest, queryset: QuerySet[Account]) -> None:
        self._decide(request, queryset, control.drain)

    @admin.action(description="Disable: out of the pool until enabled", permissions=["change"])
    def disable(self, request: HttpRequest, queryset: QuerySet[Account]) -> None:
        self._decide(request, queryset, control.disable)

    @admin.action(description="Enable: back into the pool", permissions=["change"])
    def enable(self, request: HttpRequest, queryset: QuerySet[Account]) -> None:
        self._decide(request, queryset, control.enable)

    @admin.action(description="Open the circuit: no turns for five minutes", permissions=["change"])
    def open_circuit(self, request: HttpRequest, queryset: QuerySet[Account]) -> None:
        self._decide(request, queryset, control.open_circuit)

    @admin.action(description="Reset the circuit: forget its failures", permissions=["change"])
    def reset_circuit(self, request: HttpRequest, queryset: QuerySet[Account]) -> None:
        self._decide(request, queryset, control.reset_circuit)

    @admin.action(description="Refresh the token now", permissions=["change"])
    def refresh_token(self, request: HttpRequest, queryset: QuerySet[Account]) -> None:
        self._ask(request, queryset, refresh_account)

    @admin.action(description="Probe: ask the upstream, at no cost", permissions=["change"])
    def probe(self, request: HttpRequest, queryset: QuerySet[Account]) -> None:
        self._ask(request, queryset, probe_account)

    def _decide(self, request: HttpRequest, queryset: QuerySet[Account], decide: Decide) -> None:
        """Decide about each account, tell the operator what came of it, and keep who it was."""
        for account in queryset:
            self._tell(request, account, decide(account.id, request.user.get_username()))

    def _ask(self, request: HttpRequest, queryset: QuerySet[Account], question: Ask) -> None:
        """Ask for all accounts at once, since each may take its time."""
        accounts, by = list(queryset), request.user.get_username()

        async def ask_all(asker: Asker) -> list[Happened | None]:
            return await each(lambda account: question(asker, account.id, by), accounts, PATIENCE)

        for account, happened in zip(accounts, with_asker(ask_all), strict=True):
            self._tell(request, account, happened or Happened(False, f"{account.name} did not answer in time."))

    def _tell(self, request: HttpRequest, account: Account, happened: Happened) -> None:
        if happened.changed:
            self.log_change(request, account, happened.text)
        self.message_user(request, happened.text, messages.SUCCESS if happened.changed else messages.WARNING)
