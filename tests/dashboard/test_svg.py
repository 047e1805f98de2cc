"""Pictures that any content policy lets through, whatever their numbers are."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard import svg

VALUES = st.lists(st.floats(0, 1e12), max_size=30)


def drawn(picture: str) -> ElementTree.Element:
    """The picture, which must be well-formed and carry no style."""
    root = ElementTree.fromstring(picture)
    assert all("style" not in element.attrib for element in root.iter())
    return root


def heights(picture: str, name: str) -> list[float]:
    return [float(box.attrib["height"]) for box in drawn(picture).iter("rect") if box.attrib.get("class") == name]


@given(VALUES)
def test_a_sparkline_stays_in_its_frame(values: list[float]) -> None:
    path = drawn(svg.sparkline(values, "turns")).findall("path")[1].attrib["d"]
    numbers = [float(number) for number in path.replace("M", " ").replace("L", " ").split()]
    assert all(0 <= y <= svg.SPARK_HEIGHT for y in numbers[1::2])


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e9)), max_size=20))
def test_stacked_bars_stay_in_their_frame(columns: list[tuple[float, float]]) -> None:
    picture = svg.bars(columns, ["a", "b"], ["title"] * len(columns), "turns")
    for box in drawn(picture).iter("rect"):
        assert float(box.attrib["height"]) <= svg.HEIGHT + 0.01
        assert float(box.attrib.get("y", 0)) >= -2


def test_bars_are_as_high_as_their_values_say() -> None:
    picture = svg.bars([(10, 0), (5, 5)], ["good", "bad"], ["one", "two"], "turns")
    assert heights(picture, "good") == [120, 60]
    assert heights(picture, "bad") == [60]
    assert [title.text for title in drawn(picture).iter("title")] == ["one", "two"]


def test_a_line_is_interrupted_where_there_is_no_value() -> None:
    line, dots = drawn(svg.lines([[1, None, 1, 1]], ["c"], ["t"] * 4, "latency")).findall("path")[3:]
    assert line.attrib["d"].count("M") == 2
    assert dots.attrib["d"].count("M") == 1


@given(st.floats(0.001, 1e12))
def test_an_axis_ends_at_a_round_number_that_is_not_far_above_the_highest_value(highest: float) -> None:
    assert highest <= svg.ceiling(highest) <= 2.01 * highest


def test_counts_have_a_whole_number_at_the_middle_of_their_axis() -> None:
    assert [svg.ceiling(count) for count in (0, 1, 2, 3, 7, 11, 119, 1900)] == [1, 1, 2, 4, 8, 12, 120, 2000]
    assert all(svg.ceiling(count) % 2 == 0 for count in range(2, 3000))


@pytest.mark.parametrize("shares", [[], [0.5], [0.0, 1.0, 0.3]])
def test_a_ring_is_filled_as_far_as_its_shares_say(shares: list[float]) -> None:
    circles = list(drawn(svg.ring([(share, f"part-{share}") for share in shares], "left")).iter("circle"))
    assert len(circles) == (2 * len(shares) or 1)
    around = sum(float(part) for part in circles[0].attrib["stroke-dasharray"].split())
    for share in shares:
        (part,) = (circle for circle in circles if circle.attrib["class"] == f"part-{share}")
        filled = float(part.attrib["stroke-dasharray"].split()[0])
        assert filled == pytest.approx(share * around / len(shares), abs=1.5)


def test_a_meter_never_runs_over() -> None:
    assert 'width="100.0%"' in svg.meter(1.7, "m", "used")
    assert len(list(drawn(svg.meter(None, "m", "used")).iter("rect"))) == 1


def test_labels_and_titles_are_escaped() -> None:
    assert "<b>" not in svg.sparkline([1], "<b>") + svg.bars([(1,)], ["a"], ["<b>"], "<b>")
