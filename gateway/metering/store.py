"""Rows of usage and prices: synchronous functions for the database threads."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta

from django.db.models import Count, Q, Sum

from gateway.metering.limits import Span, windows_at
from gateway.metering.prices import Price
from gateway.metering.usage import Counts, Elsewhere, Place
from gateway.models import ApiKey, KeyUsage, Replica, TokenPrice, Turn
from gateway.prepared import Prepared
from gateway.upsert import Upsert

PRICES = Prepared(TokenPrice.objects.order_by())
USAGE = Upsert(KeyUsage, unique=["key_id", "span", "start", "replica"])
# How long windows are kept when they are over.
KEPT = {Span.MINUTE: timedelta(hours=1), Span.DAY: timedelta(days=62), Span.MONTH: timedelta(days=3 * 366)}


def write_usage(replica: uuid.UUID, usage: Mapping[Place, Counts]) -> None:
    """Write down what this process has counted in all; doing it twice changes nothing."""
    if usage:
        # In one order everywhere, as for all rows that several processes may write.
        places = sorted(usage, key=lambda place: (place[0], place[1].span, place[1].start))
        USAGE.write([_row(replica, place, usage[place]) for place in places])


def _row(replica: uuid.UUID, place: Place, counts: Counts) -> dict[str, object]:
    key, window = place
    return {
        "key_id": key,
        "replica": replica,
        "span": window.span,
        "start": _moment(window.start),
        "requests": counts.requests,
        "tokens": counts.tokens,
        "cost_micros": counts.micros,
        "unpriced": counts.unpriced,
    }


def take_turns(keys: Collection[int]) -> None:
    """Wait in a transaction for other processes that write of `keys`, and let those after this one wait for its commit.

    Last before `read_usage`, so that whoever waits here holds nothing that the one before it may still want.
    """
    if keys:
        # `no_key`: rows that refer to a key may be written meanwhile. SQLite has one writer at a time anyway.
        locked = ApiKey.objects.select_for_update(no_key=True).filter(id__in=keys).order_by("id")
        list(locked.values_list("id"))


def read_usage(reader: uuid.UUID, keys: Collection[int], now: float) -> Elsewhere:
    """What others than `reader` have counted for `keys` in the windows of `now`, and have running."""
    if not keys:
        return Elsewhere()
    windows = {(window.span.value, _moment(window.start)): window for window in windows_at(now)}
    current = Q()
    for span, start in windows:
        current |= Q(span=span, start=start)
    rows = KeyUsage.objects.filter(current, key_id__in=keys).exclude(replica=reader)
    sums = rows.values_list("key_id", "span", "start").annotate(
        Sum("requests"), Sum("tokens"), Sum("cost_micros"), Sum("unpriced")
    )
    counts = {(key, windows[span, start]): Counts(*map(int, summed)) for key, span, start, *summed in sums}
    return Elsewhere(counts, _running(reader, keys))


def _running(reader: uuid.UUID, keys: Collection[int]) -> dict[int, int]:
    """Turns of each key that is limited in them, which others have in the ledger as running.

    Those that `reader` has forwarded are not among them: it counts them itself, by the place that they hold there.
    """
    limited = ApiKey.objects.filter(id__in=keys, concurrent_turns__isnull=False)
    bounded = list(limited.values_list("id", flat=True))
    if not bounded:
        return {}
    others = list(Replica.objects.filter(stopped_at=None).exclude(id=reader).values_list("id", flat=True))
    if not others:
        return {}
    turns = Turn.objects.filter(replica__in=others, outcome="", key_id__in=bounded).exclude(via=reader).order_by()
    return dict(turns.values_list("key_id").annotate(Count("id")))


def usage_of_days(now: datetime, days: int) -> dict[int, list[Counts]]:
    """What each key has used on each of the last `days` days, today last; keys that have used nothing are left out."""
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first = today - timedelta(days=days - 1)
    rows = KeyUsage.objects.filter(span=Span.DAY, start__gte=first).values_list("key_id", "start")
    found: dict[int, list[Counts]] = {}
    for key, start, *summed in rows.annotate(Sum("requests"), Sum("tokens"), Sum("cost_micros"), Sum("unpriced")):
        place = (start - first).days
        if 0 <= place < days:
            found.setdefault(key, [Counts()] * days)[place] = Counts(*map(int, summed))
    return found


def prune_usage(now: datetime) -> int:
    """Delete usage of windows that are long over; how many rows."""
    return sum(KeyUsage.objects.filter(span=span, start__lt=now - kept).delete()[0] for span, kept in KEPT.items())


def load_prices() -> list[Price]:
    """All prices."""
    return [Price(row.model, row.since, row.input, row.output, row.cached, row.tier) for row in PRICES.rows()]


def _moment(unix: int) -> datetime:
    return datetime.fromtimestamp(unix, UTC)
