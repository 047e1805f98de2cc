"""The design page says what the code says."""

from __future__ import annotations

import re

import pytest

from docs.generate import BLOCKS, PAGE, Drift, decisions, diagram, rewritten
from docs.samples import leaves, unsampled
from gateway.conf import Tunables, variable
from gateway.errors import GatewayError
from gateway.turns.turn import RULES, TRANSITIONS, Phase


def test_the_design_page_is_as_the_tables_have_it() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert rewritten(page) == page, "Run `python -m docs.generate` and look at what it changes in docs/design.md."


def test_a_part_that_is_missing_or_unknown_is_drift_as_well() -> None:
    page = PAGE.read_text(encoding="utf-8")
    with pytest.raises(Drift, match="mend its markers"):
        rewritten(page.replace("<!-- generated: lane -->", ""))
    with pytest.raises(Drift, match="mend its markers"):
        rewritten(page + "\n<!-- generated: nothing -->\n<!-- end -->\n")


def test_what_stands_in_a_generated_part_is_replaced_and_the_rest_is_kept() -> None:
    page = "\n".join(f"before {name}\n<!-- generated: {name} -->\nstale\n<!-- end -->\nafter" for name in BLOCKS)
    written = rewritten(page)
    assert "stale" not in written
    assert all(f"before {name}\n" in written for name in BLOCKS)
    assert rewritten(written) == written


def test_every_error_that_can_be_raised_has_an_example() -> None:
    assert unsampled() == set()
    assert len(list(leaves(GatewayError))) > 10


def test_a_new_error_without_an_example_is_noticed() -> None:
    class Family(GatewayError):
        """Errors of which the samples know nothing."""

    class Unheard(Family):
        """One of them."""

    assert unsampled(Family) == {"Unheard"}


def test_every_step_of_a_table_is_in_its_diagram() -> None:
    drawn = diagram(TRANSITIONS, first=Phase.RECEIVED, last=Phase.SETTLED)
    for (state, step), target in TRANSITIONS.items():
        assert re.search(rf"^    {state} --> {target}: .*\b{step}\b", drawn, re.MULTILINE)


def test_every_cause_is_in_the_table_of_decisions_once() -> None:
    told = decisions()
    for cause in {rule.cause for rule in RULES}:
        assert told.count(f"`{cause}`") == 1


def test_every_tunable_is_in_the_table_of_settings() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"| `{variable(name)}` |" in page for name in Tunables.__dataclass_fields__)
