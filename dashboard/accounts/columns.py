"""How an account looks in the list and on its page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.conf import settings
from django.contrib import admin
from django.utils import timezone
from django.utils.html import format_html

from accounts.circuit import CircuitState
from accounts.control import DRAINING
from accounts.credentials import CredentialsError, proxy_of
from accounts.models import Account
from accounts.proxy import shown_proxy
from accounts.states import State
from dashboard.columns import NOTHING, Tone, ago, ahead, coloured
from dashboard.overview.pool import CIRCUIT_TONES, STATE_TONES, Usage, usages_of
from dashboard.templatetags.board import usage_meter
from dashboard.words import percent, until
from gateway.watch.snapshot import LiveAccount

if TYPE_CHECKING:
    # The stubs want a parameter that the class does not take at run time.
    ModelAdmin = admin.ModelAdmin[Account]
else:
    ModelAdmin = admin.ModelAdmin


def live_of(account: Account) -> LiveAccount:
    """What all processes carry for the account; the list and the page have noted it on the row."""
    live = getattr(account, "live", None)
    return live if isinstance(live, LiveAccount) else LiveAccount()


class AccountColumns(ModelAdmin):
    """The columns and read-only fields; what can be done is in `AccountAdmin`."""

    @admin.display(description="state", ordering="state")
    def state_now(self, account: Account) -> str:
        now = timezone.now()
        state = account.state_at(now)
        if state is State.PAUSED and account.state_reason == DRAINING:
            return coloured("draining", Tone.BUSY)
        shown = coloured(state.value, STATE_TONES[state])
        if state is not State.LIMITED or account.state_until is None:
            return shown
        return _with_rest(shown, "back", ahead(account.state_until, now))

    @admin.display(description="state", ordering="state")
    def state_told(self, account: Account) -> str:
        """The state, and below it why."""
        why = self.reason(account)
        told = "" if why in (NOTHING, DRAINING) else format_html('<div class="below">{}</div>', why)
        return format_html("{}{}", self.state_now(account), told)

    @admin.display(description="kind", ordering="kind")
    def what(self, account: Account) -> str:
        plan = format_html('<div class="below">{}</div>', account.plan_type) if account.plan_type else ""
        return format_html("{}{}", account.kind, plan)

    @admin.display(description="why")
    def reason(self, account: Account) -> str:
        active = account.is_usable(timezone.now())
        return NOTHING if active else account.state_reason or NOTHING

    @admin.display(description="circuit", ordering="circuit__state")
    def circuit_now(self, account: Account) -> str:
        now = timezone.now()
        state = account.circuit_at(now)
        shown = coloured(state.value, CIRCUIT_TONES[state])
        if state is not CircuitState.OPEN or account.circuit.until is None:
            return shown
        return _with_rest(shown, "tried again", ahead(account.circuit.until, now))

    @admin.display(description="what opened it")
    def circuit_told(self, account: Account) -> str:
        row = getattr(account, "circuit", None)
        if row is None or row.state == CircuitState.CLOSED:
            return NOTHING
        times = "once" if row.ejections == 1 else f"{row.ejections} times in a row"
        failure = f"; the newest failure: {row.failed_as}" if row.failed_as else ""
        return f"opened {times}{failure}; good probes: {row.good_probes} of 2"

    @admin.display(description="5 h window")
    def short_window(self, account: Account) -> str:
        return _window(usages_of(account, timezone.now().timestamp())[0])

    @admin.display(description="week window")
    def long_window(self, account: Account) -> str:
        return _window(usages_of(account, timezone.now().timestamp())[1])

    @admin.display(description="active")
    def active(self, account: Account) -> int:
        return live_of(account).active

    @admin.display(description="waiting")
    def waiting(self, account: Account) -> int:
        return live_of(account).waiting

    @admin.display(description="lanes")
    def lanes(self, account: Account) -> int:
        return live_of(account).lanes

    @admin.display(description="credentials")
    def signed_in(self, account: Account) -> str:
        return "stored, sealed" if account.credentials else "none; sign it in again"

    @admin.display(description="models of its catalogue")
    def catalogue(self, account: Account) -> str:
        models = account.offered_models
        return ", ".join(models) if isinstance(models, list) and models else "not known yet, so any is tried"

    @admin.display(description="own proxy")
    def way(self, account: Account) -> str:
        try:
            proxy = proxy_of(account, settings.TOKEN_KEYS)
        except CredentialsError as error:
            return str(error)
        return "none" if proxy is None else shown_proxy(proxy)

    @admin.display(description="last used", ordering="last_used_at")
    def last_used(self, account: Account) -> str:
        return ago(account.last_used_at, timezone.now())


def _with_rest(shown: str, word: str, when: str) -> str:
    return format_html('{}<span class="state-rest">{} {}</span>', shown, word, when)


def _window(usage: Usage) -> str:
    """A bar, how much is used, and when that is over."""
    if usage.used is None:
        return NOTHING
    now = timezone.now().timestamp()
    rest = f", resets in {until(usage.resets_at, now)}" if usage.resets_at else ""
    return format_html(
        '<span class="window">{}<span class="num" title="{} used{}">{}</span></span>',
        usage_meter(usage), percent(usage.used), rest, percent(usage.used),
    )  # fmt: skip
