"""The pool as the overview shows it: each account with its state, usage and load, and all of them in a line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
from django.conf import settings
from django.db.models import Count, Q

from accounts.circuit import CircuitState
from accounts.models import Account, AccountEvent
from accounts.quota import Quota, Window
from accounts.states import State, What
from dashboard.columns import Tone
from gateway.models import Turn
from gateway.watch.rollup import ERRORS
from gateway.watch.snapshot import LiveAccount, Snapshot
from gateway.watch.store import snapshots

COLOURS = 8
# Windows of about five hours and of about a week; which slot an upstream puts them in is its own affair.
SHORT, LONG = "5 h", "week"
TROUBLES = (What.LIMITED, What.NEEDS_LOGIN, What.CIRCUIT_OPENED)
CIRCUIT_TONES = {
    CircuitState.CLOSED: Tone.GOOD,
    CircuitState.OPEN: Tone.BAD,
    CircuitState.HALF_OPEN: Tone.WARNING,
}
STATE_TONES = {
    State.ACTIVE: Tone.GOOD,
    State.LIMITED: Tone.WARNING,
    State.PAUSED: Tone.OFF,
    State.NEEDS_LOGIN: Tone.BAD,
    State.DISABLED: Tone.OFF,
}


@dataclass(frozen=True, slots=True)
class Usage:
    """One usage window of an account; `used` is 0 to 1, None when the account has told nothing of it."""

    title: str
    used: float | None = None
    resets_at: float | None = None

    @property
    def left(self) -> float | None:
        return None if self.used is None else max(0.0, 1.0 - self.used)


@dataclass(frozen=True, slots=True)
class Card:
    """One account. `state` is the word for its pill: its circuit where that is what keeps turns away."""

    id: int
    name: str
    kind: str
    plan: str
    colour: int
    state: str
    tone: Tone
    until: float | None
    circuit: str
    usages: tuple[Usage, Usage]
    active: int
    waiting: int
    lanes: int
    trouble: str
    trouble_at: datetime | None
    usable: bool

    @property
    def tells_windows(self) -> bool:
        """Whether anything is known of its usage."""
        return any(usage.used is not None for usage in self.usages)


@dataclass(frozen=True, slots=True)
class Pool:
    """All accounts, and what the gateway's processes do now. `errors` is the share of the last minute's turns."""

    cards: Sequence[Card]
    counts: Mapping[str, int]
    running: int
    waiting: int
    lanes: int
    per_minute: int
    errors: float
    replicas: int

    @property
    def usable(self) -> int:
        return sum(card.usable for card in self.cards)


def dead_after() -> timedelta:
    """How long a process may be silent before it does not count any more: then its leases do not, either."""
    return timedelta(seconds=settings.GATEWAY.lease_ttl)


def load_pool(now: datetime) -> Pool:
    """The pool at `now`: a handful of queries, whatever the size of the ledger."""
    live = snapshots(now, dead_after())
    carried = carried_by(live.values())
    troubles = _troubles(now)
    accounts = Account.objects.select_related("circuit").defer("credentials")
    cards = [
        _card(account, place % COLOURS, carried.get(str(account.id), LiveAccount()), troubles.get(account.id), now)
        for place, account in enumerate(accounts)
    ]
    ended = Turn.objects.filter(settled_at__gt=now - timedelta(minutes=1)).aggregate(
        all=Count("pk"), bad=Count("pk", filter=Q(outcome__in=ERRORS))
    )
    return Pool(
        cards=cards,
        counts=_counts(cards),
        running=sum(each.held for each in live.values()),
        waiting=sum(each.waiting for each in live.values()),
        lanes=sum(each.open_lanes for each in live.values()),
        per_minute=ended["all"],
        errors=ended["bad"] / ended["all"] if ended["all"] else 0.0,
        replicas=len(live),
    )


def carried_by(live: Iterable[Snapshot]) -> dict[str, LiveAccount]:
    """What each account carries in all processes together."""
    carried: dict[str, LiveAccount] = {}
    for snapshot in live:
        for account, one in snapshot.accounts.items():
            other = carried.get(account, LiveAccount())
            carried[account] = LiveAccount(
                one.active + other.active, one.waiting + other.waiting, one.lanes + other.lanes
            )
    return carried


def _troubles(now: datetime) -> dict[int, AccountEvent]:
    """The newest trouble of each account within a day."""
    events = AccountEvent.objects.filter(at__gt=now - timedelta(days=1), what__in=TROUBLES, account__isnull=False)
    found: dict[int, AccountEvent] = {}
    for event in events.order_by("-at", "-id")[:200]:
        found.setdefault(event.account_id or 0, event)
    return found


def _card(account: Account, colour: int, live: LiveAccount, trouble: AccountEvent | None, now: datetime) -> Card:
    state = account.state_at(now)
    circuit = account.circuit_at(now)
    word, tone = state.value.replace("_", " "), STATE_TONES[state]
    until = account.state_until.timestamp() if state is State.LIMITED and account.state_until else None
    if state is State.ACTIVE and circuit is not CircuitState.CLOSED:
        word, tone = f"circuit {circuit}", Tone.BAD if circuit is CircuitState.OPEN else Tone.WARNING
        until = account.circuit.until.timestamp() if account.circuit.until else None
    return Card(
        id=account.id,
        name=account.name,
        kind=account.kind,
        plan=account.plan_type,
        colour=colour,
        state=word,
        tone=tone,
        until=until,
        circuit=str(circuit),
        usages=usages_of(account, now.timestamp()),
        active=live.active,
        waiting=live.waiting,
        lanes=live.lanes,
        trouble=_told(account, state, trouble),
        trouble_at=trouble.at if trouble is not None and state is State.ACTIVE else None,
        usable=state is State.ACTIVE and circuit is not CircuitState.OPEN,
    )


def _told(account: Account, state: State, trouble: AccountEvent | None) -> str:
    if state is not State.ACTIVE:
        return account.state_reason
    if trouble is None:
        return ""
    return f"{trouble.get_what_display()}: {trouble.why}" if trouble.why else trouble.get_what_display()


def usages_of(account: Account, now: float) -> tuple[Usage, Usage]:
    """The two windows of the account as far as they are known at `now` (unix seconds)."""
    try:
        quota = msgspec.convert(account.quota, Quota).at(now)
    except msgspec.ValidationError:
        quota = Quota()
    windows = {SHORT: Usage(SHORT), LONG: Usage(LONG)}
    for slot, fallback in (("codex/primary", SHORT), ("codex/secondary", LONG)):
        window = quota.windows.get(slot)
        if window is not None and window.used_percent is not None:
            title = _title(window, fallback)
            windows[title] = Usage(title, window.used_percent / 100, window.resets_at)
    return windows[SHORT], windows[LONG]


def _title(window: Window, fallback: str) -> str:
    return fallback if window.minutes is None else SHORT if window.minutes <= 24 * 60 else LONG


def _counts(cards: Iterable[Card]) -> dict[str, int]:
    """How many accounts are in which state that an operator looks for; the last two only where there are some."""
    words = [card.state for card in cards]
    counts = {
        "usable": sum(card.usable for card in cards),
        "limited": words.count("limited"),
        "circuit open": words.count("circuit open"),
        "needing login": words.count("needs login"),
    }
    resting = {"paused": words.count("paused"), "disabled": words.count("disabled")}
    return counts | {word: count for word, count in resting.items() if count}
