"""Prices from files: taken as they are written, and refused where they are in doubt."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest

from gateway.metering.price_file import UnusablePrices, read_prices
from gateway.metering.prices import Price

DAY = date(2026, 1, 31)


def test_a_table_gives_prices_and_what_is_empty_is_unknown() -> None:
    text = "model,tier,since,input,cached,output\ngpt-x,,2026-01-31,1.25,0.125,10\ngpt-x,priority,2026-01-31,2.5,,20\n"
    assert read_prices(text) == [
        Price("gpt-x", DAY, Decimal("1.25"), Decimal(10), Decimal("0.125")),
        Price("gpt-x", DAY, Decimal("2.5"), Decimal(20), None, "priority"),
    ]


def test_columns_may_be_left_out_and_stand_in_any_order() -> None:
    assert read_prices("output,input,since,model\n2,1,2026-01-31,gpt-x") == [
        Price("gpt-x", DAY, Decimal(1), Decimal(2))
    ]


def test_json_says_the_same_with_every_digit() -> None:
    text = '[{"model": "gpt-x", "since": "2026-01-31", "input": 0.000001, "cached": null, "output": "0"}]'
    assert read_prices(text) == [Price("gpt-x", DAY, Decimal("0.000001"), Decimal(0))]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no price"),
        ("model,since,input,output\n", "no price"),
        ("model,since,input,output\ngpt-x,2026-01-31,1", "Line 2: output is missing"),
        ("model,since,input,output\n,2026-01-31,1,2", "Line 2: model is missing"),
        ("model,since,input,output\ngpt-x,2026-01-31,1,2,3", "Line 2: it has more cells"),
        ("model,since,price\ngpt-x,2026-01-31,1", "'price' is no column"),
        ("model,since,input,output\ngpt-x,31.1.2026,1,2", "since must be a day"),
        ("model,since,input,output\ngpt-x,2026-01-31,-1,2", "input must be dollars"),
        ("model,since,input,output\ngpt-x,2026-01-31,1,$2", "output must be dollars"),
        ("model,since,input,output\ngpt-x,2026-01-31,1,nan", "output must be dollars"),
        ("model,since,input,output\ngpt-x,2026-01-31,1,1e9", "output must be dollars"),
        ("model,since,input,output\ngpt-x,2026-01-31,1,0.0000001", "output must be dollars"),
        (f"model,since,input,output\n{'x' * 101},2026-01-31,1,2", "longer than 100"),
        ("model,since,input,output\na,2026-01-31,1,2\na,2026-01-31,1,3", "Line 3: a has a price from 2026-01-31 on"),
        ("[", "no JSON"),
        ('{"model": "a"}', "array of objects"),
        ("[1]", "array of objects"),
    ],
)
def test_what_cannot_be_a_price_is_refused_with_its_place(text: str, why: str) -> None:
    with pytest.raises(UnusablePrices, match=why.replace("$", r"\$")):
        read_prices(text)
