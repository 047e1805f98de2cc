"""List the accounts of the pool, without their secrets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypedDict, Unpack

import msgspec
from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from accounts.circuit import CircuitState
from accounts.credentials import CredentialsError, proxy_of
from accounts.models import Account
from accounts.proxy import shown_proxy
from accounts.states import State

HEADINGS = (
    "NAME", "KIND", "STATE", "UNTIL", "CIRCUIT", "PRIORITY", "TRANSPORT", "PLAN", "PROXY", "BASE URL", "REASON",
)  # fmt: skip


class Arguments(TypedDict, total=False):
    """What `handle` reads; Django passes its own options besides."""

    json: bool


class Command(BaseCommand):
    help = "List the accounts of the pool with their states, circuits and proxies."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="a JSON array for machines")

    def handle(self, *args: object, **options: Unpack[Arguments]) -> str:
        accounts = list(Account.objects.defer("credentials").select_related("circuit"))
        now = timezone.now()
        return as_json(accounts, now) if options.get("json") else as_table(accounts, now)


def as_table(accounts: Sequence[Account], now: datetime) -> str:
    """Return an aligned table and a closing sentence; times are UTC, states are those that count at `now`."""
    if not accounts:
        return "No accounts; add one with add_account."
    rows = [HEADINGS, *(_row(account, now) for account in accounts)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, "", _summary(accounts, now)])


def _row(account: Account, now: datetime) -> tuple[str, ...]:
    state = account.state_at(now)
    resting = state is not State.ACTIVE
    return (
        account.name,
        account.kind,
        state.value,
        _time(account.state_until) if resting and account.state_until else "-",
        _circuit(account, now),
        str(account.priority),
        account.transport,
        account.plan_type or "-",
        _proxy(account) or "-",
        account.base_url,
        " ".join(account.state_reason.split()) if resting else "",
    )


def _time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}"


def _circuit(account: Account, now: datetime) -> str:
    circuit = account.circuit_at(now)
    if circuit is not CircuitState.OPEN:
        return circuit.value
    return f"{circuit.value} until {_time(account.circuit.until)}" if account.circuit.until else circuit.value


def _proxy(account: Account) -> str | None:
    """The proxy without name and password, or why it cannot be told."""
    try:
        proxy = proxy_of(account, settings.TOKEN_KEYS)
    except CredentialsError:
        return "cannot be opened"
    return None if proxy is None else shown_proxy(proxy)


def _summary(accounts: Sequence[Account], now: datetime) -> str:
    states = Counter(account.state_at(now) for account in accounts)
    counts = ", ".join(f"{states[state]} {state}" for state in State if states[state])
    shut = sum(1 for account in accounts if account.circuit_at(now) is CircuitState.OPEN)
    circuits = f"; {shut} circuit{'' if shut == 1 else 's'} open" if shut else ""
    return f"{len(accounts)} account{'' if len(accounts) == 1 else 's'}: {counts}{circuits}."


def as_json(accounts: Sequence[Account], now: datetime) -> str:
    """Return a JSON array; `state` is the stored one, `usable` says whether it keeps turns out at `now`.

    `circuit` is the one that counts at `now`, `proxy` is without name and password.
    """
    return msgspec.json.format(msgspec.json.encode([_entry(account, now) for account in accounts])).decode()


def _entry(account: Account, now: datetime) -> dict[str, str | int | bool | datetime | None]:
    return {
        "name": account.name,
        "kind": account.kind,
        "state": account.state,
        "state_reason": account.state_reason,
        "state_until": account.state_until,
        "usable": account.is_usable(now),
        "circuit": account.circuit_at(now).value,
        "circuit_until": account.circuit.until if account.circuit_at(now) is CircuitState.OPEN else None,
        "priority": account.priority,
        "transport": account.transport,
        "proxy": _proxy(account),
        "base_url": account.base_url,
        "max_streams": account.max_streams,
        "account_id": account.account_id,
        "email": account.email,
        "plan_type": account.plan_type,
        "last_used_at": account.last_used_at,
    }
