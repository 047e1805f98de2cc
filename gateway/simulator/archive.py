"""Stored responses as the API shows them: retrieved, deleted, cancelled, and their input item by item. Pure.

A response in the background ends at its time, whoever listens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gateway.simulator.envelope import Event
from gateway.simulator.refusal import Refusal, Refused, invalid
from gateway.simulator.values import Json

KEPT = 2000
MOST_ITEMS = 100


@dataclass(frozen=True, slots=True)
class Kept:
    """One stored response: how it looks while it runs and once it has ended, and when that is (unix seconds).

    `events` are those of its stream, the last of them at `ends_at` and each `interval` seconds after the one before.
    """

    begun: Json
    ended: Json
    items: Sequence[Json]
    ends_at: float
    cancelled: bool = False
    events: Sequence[Event] = ()
    interval: float = 0.0

    def at(self, now: float) -> Json:
        """The response object at that time."""
        if self.cancelled:
            return {**self.begun, "status": "cancelled"}
        return self.ended if now >= self.ends_at else {**self.begun, "status": "in_progress"}


class Timed(NamedTuple):
    """An event of a stored response, and in how many seconds it comes."""

    seconds: float
    type: str
    payload: bytes


class Archive:
    """The stored responses of all accounts; each account sees its own."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], Kept] = OrderedDict()

    def keep(self, account: str, response_id: str, kept: Kept) -> None:
        """Store a response; beyond a limit the oldest are forgotten. One that is there already is left alone."""
        self._kept.setdefault((account, response_id), kept)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)

    def call(self, account: str, method: str, path: str, query: Mapping[str, str], now: float) -> Json:
        """Answer a request for what is below `…/responses/`; raises `Refused` (400, 404)."""
        response_id, _, rest = path.partition("/")
        kept = self._kept.get((account, response_id))
        known = (method, rest) in {("GET", ""), ("DELETE", ""), ("POST", "cancel"), ("GET", "input_items")}
        if kept is None or not known:
            raise Refused(Refusal(404, f"Response with id '{response_id}' not found.", param="id"))
        if method == "DELETE":
            del self._kept[account, response_id]
            return {"id": response_id, "object": "response", "deleted": True}
        if rest == "cancel":
            kept = self._kept[account, response_id] = self._cancelled(kept, now)
        return _page(kept.items, query) if rest == "input_items" else kept.at(now)

    def stream(self, account: str, response_id: str, query: Mapping[str, str], now: float) -> list[Timed]:
        """The events of a stored response behind `starting_after`; raises `Refused` (400, 404)."""
        kept = self._kept.get((account, response_id))
        if kept is None:
            raise Refused(Refusal(404, f"Response with id '{response_id}' not found.", param="id"))
        after = query.get("starting_after", "-1")
        if after != "-1" and not after.isdecimal():
            raise Refused(invalid("starting_after must be a sequence number.", param="starting_after"))
        last = len(kept.events) - 1
        return [
            Timed(max(0.0, kept.ends_at - (last - number) * kept.interval - now), event.type, event.payload(number))
            for number, event in enumerate(kept.events)
            if number > int(after)
        ]

    def _cancelled(self, kept: Kept, now: float) -> Kept:
        if kept.begun.get("background") is not True:
            raise Refused(invalid("Cannot cancel a synchronous response."))
        if now >= kept.ends_at and not kept.cancelled:
            raise Refused(invalid("Cannot cancel a completed response."))
        return replace(kept, cancelled=True)


def _page(items: Sequence[Json], query: Mapping[str, str]) -> Json:
    """A page of the input, the newest item first unless the query says otherwise."""
    given = query.get("limit", "20")
    if not given.isdecimal() or not 1 <= int(given) <= MOST_ITEMS:
        raise Refused(invalid(f"The limit must be between 1 and {MOST_ITEMS}.", param="limit"))
    named = [{"id": f"item_{number}", **item} for number, item in enumerate(items)]
    ordered = named if query.get("order") == "asc" else named[::-1]
    ids = [item["id"] for item in ordered]
    start = ids.index(query["after"]) + 1 if query.get("after") in ids else 0
    page = ordered[start : start + int(given)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": start + int(given) < len(ordered),
    }
