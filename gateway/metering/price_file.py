"""Token prices as a file: CSV with a heading, or a JSON array of objects with the same names. Pure.

Nothing is guessed: a price that is left out is unknown, and an empty cell is no zero.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from datetime import date
from decimal import Decimal, InvalidOperation

from gateway.metering.prices import Price

NEEDED = ("model", "since", "input", "output")
KNOWN = frozenset({*NEEDED, "cached", "tier"})
# As many digits as the ledger keeps.
MOST = Decimal(1_000_000)
SMALLEST = Decimal("0.000001")
LONGEST = {"model": 100, "tier": 20}


class UnusablePrices(ValueError):
    """The file cannot be used. The message says where and why."""


def read_prices(text: str) -> list[Price]:
    """All prices in `text`; raises `UnusablePrices` for the first that cannot be one."""
    found: dict[tuple[str, str, date], Price] = {}
    for where, row in _rows(text):
        price = _price(where, row)
        place = (price.model, price.tier, price.since)
        if place in found:
            raise UnusablePrices(f"{where}: {price.model} has a price from {price.since} on already.")
        found[place] = price
    if not found:
        raise UnusablePrices("There is no price in the file.")
    return list(found.values())


def _rows(text: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Each row as text, and how to call it."""
    if text.lstrip()[:1] in ("[", "{"):
        yield from _objects(text)
        return
    lines = csv.DictReader(text.splitlines())
    for row in lines:
        if None in row:
            raise UnusablePrices(f"Line {lines.line_num}: it has more cells than the heading.")
        yield f"Line {lines.line_num}", {name: (value or "").strip() for name, value in row.items()}


def _objects(text: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    try:
        # Numbers stay as they are written: a float would round them.
        rows = json.loads(text, parse_float=str, parse_int=str)
    except ValueError as error:
        raise UnusablePrices(f"The file is no JSON: {error}.") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UnusablePrices("The JSON must be an array of objects, one for each price.")
    for number, row in enumerate(rows, 1):
        yield f"Object {number}", {name: "" if value is None else str(value).strip() for name, value in row.items()}


def _price(where: str, row: Mapping[str, str]) -> Price:
    unknown = sorted(set(row) - KNOWN)
    if unknown:
        raise UnusablePrices(f"{where}: {unknown[0]!r} is no column; there are {', '.join(sorted(KNOWN))}.")
    for name in NEEDED:
        if not row.get(name):
            raise UnusablePrices(f"{where}: {name} is missing.")
    for name, longest in LONGEST.items():
        if len(row.get(name, "")) > longest:
            raise UnusablePrices(f"{where}: {name} is longer than {longest} characters.")
    try:
        since = date.fromisoformat(row["since"])
    except ValueError:
        raise UnusablePrices(f"{where}: since must be a day like 2026-01-31.") from None
    return Price(
        model=row["model"],
        since=since,
        input=_dollars(where, "input", row["input"]),
        output=_dollars(where, "output", row["output"]),
        cached=_dollars(where, "cached", row["cached"]) if row.get("cached") else None,
        tier=row.get("tier", ""),
    )


def _dollars(where: str, name: str, text: str) -> Decimal:
    try:
        dollars = Decimal(text)
    except InvalidOperation:
        dollars = Decimal("nan")
    if not (dollars.is_finite() and 0 <= dollars < MOST and dollars == dollars.quantize(SMALLEST)):
        raise UnusablePrices(f"{where}: {name} must be dollars for a million tokens, like 1.25, and not {text[:20]!r}.")
    return dollars
