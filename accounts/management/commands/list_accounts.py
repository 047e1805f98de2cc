"""List the accounts of the pool, without their secrets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypedDict, Unpack

import msgspec
from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from accounts.models import Account
from accounts.states import State

HEADINGS = ("NAME", "KIND", "STATE", "UNTIL", "PRIORITY", "TRANSPORT", "PLAN", "BASE URL", "REASON")


class Arguments(TypedDict, total=False):
    """What `handle` reads; Django passes its own options besides."""

    json: bool


class Command(BaseCommand):
    help = "List the accounts of the pool with their states."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="a JSON array for machines")

    def handle(self, *args: object, **options: Unpack[Arguments]) -> str:
        accounts = list(Account.objects.defer("credentials"))
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
        f"{account.state_until.astimezone(UTC):%Y-%m-%d %H:%M}" if resting and account.state_until else "-",
        str(account.priority),
        account.transport,
        account.plan_type or "-",
        account.base_url,
        " ".join(account.state_reason.split()) if resting else "",
    )


def _summary(accounts: Sequence[Account], now: datetime) -> str:
    states = Counter(account.state_at(now) for account in accounts)
    counts = ", ".join(f"{states[state]} {state}" for state in State if states[state])
    return f"{len(accounts)} account{'' if len(accounts) == 1 else 's'}: {counts}."


def as_json(accounts: Sequence[Account], now: datetime) -> str:
    """Return a JSON array; `state` is the stored one, `usable` says whether it keeps turns out at `now`."""
    return msgspec.json.format(msgspec.json.encode([_entry(account, now) for account in accounts])).decode()


def _entry(account: Account, now: datetime) -> dict[str, str | int | bool | datetime | None]:
    return {
        "name": account.name,
        "kind": account.kind,
        "state": account.state,
        "state_reason": account.state_reason,
        "state_until": account.state_until,
        "usable": account.is_usable(now),
        "priority": account.priority,
        "transport": account.transport,
        "base_url": account.base_url,
        "max_streams": account.max_streams,
        "account_id": account.account_id,
        "email": account.email,
        "plan_type": account.plan_type,
        "last_used_at": account.last_used_at,
    }
