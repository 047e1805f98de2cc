"""What tokens cost, to the millionth of a dollar."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metering.prices import Price, PriceList
from gateway.protocol.events import Usage

OLD, NEW, TODAY = date(2026, 1, 1), date(2026, 6, 1), date(2026, 11, 30)
USAGE = Usage(input=1000, cached=400, output=100, reasoning=50, total=1100)


def price(model: str = "gpt", since: date = OLD, factor: int = 1, **changes: object) -> Price:
    values: dict[str, object] = {"cached": Decimal("0.125") * factor, **changes}
    return Price(model, since, Decimal("1.25") * factor, Decimal(10) * factor, **values)  # type: ignore[arg-type]


def test_cached_input_has_a_price_of_its_own() -> None:
    assert PriceList([price()]).cost("gpt", None, USAGE, TODAY) == 600 * 1.25 + 400 * 0.125 + 100 * 10


def test_without_one_it_costs_what_other_input_does() -> None:
    assert PriceList([price(cached=None)]).cost("gpt", None, USAGE, TODAY) == 1000 * 1.25 + 100 * 10


def test_the_newest_price_that_holds_counts() -> None:
    prices = PriceList([price(), price(since=NEW, factor=2), price(since=date(2027, 1, 1), factor=9)])
    found = [prices.find("gpt", "", day) for day in (date(2026, 5, 31), NEW, TODAY)]
    assert [each and each.output for each in found] == [10, 20, 20]


@pytest.mark.parametrize("model", ["other", "gpt-mini", ""])
def test_a_model_without_a_price_costs_nobody_knows_what(model: str) -> None:
    assert PriceList([price()]).cost(model, None, USAGE, TODAY) is None


def test_before_its_first_price_a_model_has_none() -> None:
    assert PriceList([price(since=NEW)]).cost("gpt", None, USAGE, OLD) is None


def test_usage_that_was_not_told_has_no_cost_though_none_has_been_used() -> None:
    assert PriceList([price()]).cost("gpt", None, None, TODAY) is None
    assert PriceList([price()]).cost("gpt", None, Usage(), TODAY) == 0


def test_a_dated_snapshot_costs_what_its_model_does_unless_it_has_a_price_of_its_own() -> None:
    prices = PriceList([price(), price("gpt-2026-05-05", factor=3)])
    found = [prices.find(model, "", TODAY) for model in ("gpt-2026-04-04", "gpt-2026-05-05")]
    assert [each and each.output for each in found] == [10, 30]


@pytest.mark.parametrize(("tier", "output"), [("default", 10), ("auto", 10), ("priority", 20), ("flex", None)])
def test_a_service_tier_has_prices_of_its_own(tier: str, output: int | None) -> None:
    found = PriceList([price(), price(tier="priority", factor=2)]).find("gpt", tier, TODAY)
    assert (found and found.output) == output


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9), st.decimals(0, 1000, places=6))
def test_a_cost_is_exact_and_never_negative(tokens: int, cached: int, output: int, each: Decimal) -> None:
    listed = PriceList([Price("gpt", OLD, each, each * 8, each / 10)])
    cost = listed.cost("gpt", None, Usage(tokens, cached, output), TODAY)
    cached = min(cached, tokens)
    exact = Fraction(each) * (tokens - cached) + Fraction(each / 10) * cached + Fraction(each * 8) * output
    assert cost is not None
    assert cost >= 0
    assert abs(cost - exact) <= Fraction(1, 2) + exact / 10**20
