"""Charts have a line for each contender, inside their frame."""

import re
from xml.etree import ElementTree

import pytest

from bench.plots import charts, draw, nice_max
from tests.unit.bench.documents import everything

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("value", "expected"), [(0, 1), (0.7, 1), (1, 1), (1.1, 2), (2.1, 2.5), (42, 50), (51, 100), (2000, 2000)]
)
def test_an_axis_ends_at_a_round_number(value: float, expected: float) -> None:
    assert nice_max(value) == pytest.approx(expected)


def test_points_lie_where_their_figures_say() -> None:
    chart = ElementTree.fromstring(draw("t", "x", "y", {"a": [(0, 0), (50, 100), (100, 50)]}))
    (line,) = chart.iter(f"{SVG}polyline")
    assert line.get("points") == "64.0,306.0 342.0,56.0 620.0,181.0"


def test_a_name_is_text_whatever_it_holds() -> None:
    chart = ElementTree.fromstring(draw("a < b & c", "x", "y", {"<b>": [(1, 1)]}))
    texts = [element.text for element in chart.iter(f"{SVG}text")]
    assert {"a < b & c", "<b>"} <= set(texts)


def test_everything_that_was_measured_is_drawn() -> None:
    drawn = charts(everything())
    assert list(drawn) == ["latency.svg", "concurrency.svg", "memory.svg", "soak.svg"]
    for chart in drawn.values():
        for x, y in re.findall(r"([\d.-]+),([\d.-]+)", " ".join(re.findall(r'points="([^"]*)"', chart))):
            assert 64 <= float(x) <= 620
            assert 56 <= float(y) <= 306


def test_what_was_not_measured_is_not_drawn() -> None:
    assert charts({"contenders": {}, "studies": {}}) == {}
