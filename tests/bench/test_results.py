from __future__ import annotations

import json

import pytest

from tests.bench.answers import Shape
from tests.bench.cases import FULL, QUICK, Case
from tests.bench.measure import Sample
from tests.bench.memory import Weight
from tests.bench.requests import Endpoint
from tests.bench.results import CaseResult, Figures, Line, Report, Spread, percentile
from tests.bench.systems import Protocol, Role, System
from tests.bench.table import as_json, as_text

PACED = Case(Shape(100, 10), at_once=16, size=40 * 1024, turns=1)
UNPACED = Case(Shape(100, 0), at_once=16, size=40 * 1024, turns=1)
ENDPOINT = Endpoint("127.0.0.1", 1, "/")


def system(role: Role, protocol: Protocol = Protocol.SSE) -> System:
    return System(role.value, protocol, role, ENDPOINT, None if role is Role.DIRECT else 1)


def sample(cpu: float | None, *, first: float = 1.0, travel: float = 0.1, others: float = 0.0) -> Sample:
    """A run of ten turns in two seconds; `cpu` in seconds, `first` and `travel` in milliseconds."""
    return Sample(
        turns=10,
        events=1000,
        seconds=2.0,
        cpu=cpu,
        upstream=0.2,
        driver=0.3,
        others=others,
        metered=2.0,
        firsts=[int(first * 1e6)] * 10,
        travels=[int(travel * 1e6)] * 10,
    )


def report(case: Case, others: float = 0.0) -> Report:
    lines = [
        Line(system(Role.DIRECT), Figures.of([sample(None, first=1.0)])),
        Line(system(Role.BARE), Figures.of([sample(0.1, first=2.0, travel=0.2)])),
        Line(system(Role.GATEWAY), Figures.of([sample(0.3, first=4.0, travel=0.3, others=others)])),
        Line(system(Role.PEER), None, "failed: no"),
    ]
    weights = [
        (system(Role.BARE, Protocol.WEBSOCKET), Weight(50 * 1024**2, 10 * 1024, 20 * 1024, 0.001, 100)),
        (system(Role.GATEWAY, Protocol.WEBSOCKET), Weight(100 * 1024**2, 15 * 1024, 60 * 1024, 0.002, 100)),
    ]
    return Report("2 x processor", "3.11", 1, [CaseResult(case, lines)], weights)


def line_of(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(name))


def test_a_percentile_is_one_of_the_values() -> None:
    values = list(range(1, 101))

    assert [percentile(values, percent) for percent in (0, 50, 99, 100)] == [1, 50, 99, 100]
    assert percentile([7], 99) == 7


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_runs_become_a_median_with_its_spread_in_milliseconds_a_turn() -> None:
    figures = Figures.of([sample(0.1), sample(0.4), sample(0.2)])

    assert figures.cpu_per_turn == Spread(median=20.0, least=10.0, most=40.0)
    assert figures.events_per_second.median == 500
    assert figures.first_p50 == 1.0
    assert figures.turns == 30


def test_shares_are_parts_of_one_core() -> None:
    figures = Figures.of([sample(0.1, others=1.0)])

    assert (figures.upstream_share, figures.driver_share, figures.others_share) == (0.1, 0.15, 0.5)


def test_a_table_shows_ratios_to_the_bare_relay_and_what_is_added_to_the_upstream_alone() -> None:
    text = as_text(report(PACED))

    gateway = line_of(text, "SSE: gateway")
    assert "30.0 (30.0-30.0) x3.00" in gateway
    assert "+3.00 x3.00" in gateway
    assert "0.30 x1.50" in gateway
    assert "[1.00]" in line_of(text, "SSE: upstream alone")
    assert "x2.00" in line_of(text, "WebSocket: gateway")


def test_a_table_of_unpaced_answers_shows_events_per_second() -> None:
    assert "500 (500-500) x1.00" in line_of(as_text(report(UNPACED)), "SSE: gateway")


def test_a_failure_takes_the_place_of_figures() -> None:
    assert line_of(as_text(report(PACED)), "SSE: peer").endswith("failed: no")


def test_a_run_on_a_busy_machine_is_marked() -> None:
    assert line_of(as_text(report(PACED, others=1.0)), "SSE: gateway").endswith("50% !")


def test_json_has_the_same_figures_unrounded() -> None:
    told = json.loads(as_json(report(PACED)))

    systems = told["cases"][0]["systems"]
    assert systems[2]["figures"]["cpu_per_turn"]["median"] == 30.0
    assert systems[3]["failure"] == "failed: no"
    assert told["memory"][1]["used_socket"] == 60 * 1024


def test_the_plans_measure_what_the_documentation_says() -> None:
    assert {(case.at_once, case.size) for case in QUICK.cases} == {(16, 40 * 1024)}
    assert {case.at_once for case in FULL.cases} == {1, 16, 128}
    assert {case.size for case in FULL.cases} == {4 * 1024, 40 * 1024, 4 * 1024**2}
