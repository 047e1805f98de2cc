"""What tokens cost. Pure. A dollar for a million tokens is a millionth of a dollar for one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_HALF_UP, Decimal

from gateway.protocol.events import Usage

# What upstreams call the tier of a request that asked for none.
PLAIN_TIERS = frozenset({"", "default", "auto", "standard"})
_DATED = re.compile(r"-\d{4}-\d{2}-\d{2}\Z")


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars for a million tokens of `model` from the day `since` on; `cached` None: as other input.

    `tier` is the service tier, empty for the ordinary one.
    """

    model: str
    since: date
    input: Decimal
    output: Decimal
    cached: Decimal | None = None
    tier: str = ""


class PriceList:
    """All known prices. What has no price here has no cost, which is not the same as costing nothing."""

    def __init__(self, prices: Iterable[Price] = ()) -> None:
        self.replace(prices)

    def replace(self, prices: Iterable[Price]) -> None:
        """Know exactly these from now on."""
        self._prices: defaultdict[tuple[str, str], list[Price]] = defaultdict(list)
        for price in sorted(prices, key=lambda price: price.since, reverse=True):
            self._prices[price.model, _tier(price.tier)].append(price)

    def find(self, model: str, tier: str, day: date) -> Price | None:
        """The price of `model` on `day`; a dated snapshot without a price of its own costs what its model does."""
        for name in dict.fromkeys((model, _DATED.sub("", model))):
            for price in self._prices.get((name, _tier(tier)), ()):
                if price.since <= day:
                    return price
        return None

    def cost(self, model: str, tier: str | None, usage: Usage | None, day: date) -> int | None:
        """Millionths of a dollar, rounded; None when usage or price is not known."""
        price = self.find(model, tier or "", day)
        if usage is None or price is None:
            return None
        cached = min(usage.cached, usage.input)
        total = (
            (usage.input - cached) * price.input
            + cached * (price.input if price.cached is None else price.cached)
            + usage.output * price.output
        )
        return int(total.to_integral_value(ROUND_HALF_UP))


def _tier(name: str) -> str:
    return "" if name in PLAIN_TIERS else name
