"""Line charts as SVG, drawn by a template: a plotting library would weigh more than all that is measured with it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from bench.targets import Document

COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#888888")
"""Okabe and Ito's, which people who confuse colours can tell apart."""
TICKS: Final = 5

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    name: str
    colour: str
    points: str
    """As ``polyline`` has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A chart in pixels."""

    title: str
    x_label: str
    y_label: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    lines: list[Line]
    width: int = 800
    height: int = 360
    left: int = 64
    right: int = 620
    top: int = 56
    bottom: int = 306


def draw(title: str, x_label: str, y_label: str, series: Mapping[str, Points]) -> str:
    """A chart with a line for each of the series, both axes from zero."""
    x_max = nice_max(max(x for points in series.values() for x, _ in points))
    y_max = nice_max(max(y for points in series.values() for _, y in points))
    frame = Plot(title=title, x_label=x_label, y_label=y_label, x_ticks=[], y_ticks=[], lines=[])

    def at_x(x: float) -> float:
        return round(frame.left + (frame.right - frame.left) * x / x_max, 1)

    def at_y(y: float) -> float:
        return round(frame.bottom - (frame.bottom - frame.top) * y / y_max, 1)

    for number in range(TICKS + 1):
        frame.x_ticks.append(Tick(at=at_x(x_max * number / TICKS), label=f"{x_max * number / TICKS:,.6g}"))
        frame.y_ticks.append(Tick(at=at_y(y_max * number / TICKS), label=f"{y_max * number / TICKS:,.6g}"))
    for number, (name, points) in enumerate(series.items()):
        drawn = " ".join(f"{at_x(x)},{at_y(y)}" for x, y in points)
        frame.lines.append(Line(name=name, colour=COLOURS[number % len(COLOURS)], points=drawn))
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, undefined=StrictUndefined, autoescape=True, trim_blocks=True)
    return environment.get_template("plot.svg.j2").render(plot=frame) + "\n"


def nice_max(value: float) -> float:
    """The smallest of 1, 2, 2.5 and 5 times a power of ten that is not below ``value``; 1 for nothing."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= value)


def charts(document: Document) -> dict[str, str]:
    """File name to SVG, of all that the document has figures for."""
    studies: dict[str, Any] = document["studies"]
    wanted = {
        "latency.svg": (
            "Time to first token of 50 streams: how many of 100 requests had it by then",
            "milliseconds",
            "% of requests",
            {
                name: [(float(ms), float(share)) for share, ms in enumerate(runs["steady"]["ttft_percentiles_ms"])]
                for name, runs in document["contenders"].items()
                if "steady" in runs and runs["steady"]["ttft_percentiles_ms"]
            },
        ),
        "concurrency.svg": (
            "CPU per delta of the whole path, each stream at the same pace",
            "concurrent streams",
            "microseconds per delta",
            {
                name: [(point["streams"], point["path_us_per_delta"]) for point in points]
                for name, points in studies.get("concurrency", {}).items()
            },
        ),
        "memory.svg": (
            "Memory of the processor",
            "open streams",
            "MiB resident",
            {
                name: [(point["streams"], point["processor_mib"]) for point in study["points"]]
                for name, study in studies.get("memory", {}).items()
            },
        ),
        "soak.svg": (
            "Memory of the processor at half of what it carries",
            "seconds",
            "MiB resident",
            {"deltafence": [(each["at_s"], each["processor_mib"]) for each in studies.get("soak", {}).get("samples", [])]},
        ),
    }
    return {name: draw(*parts) for name, parts in wanted.items() if any(parts[3].values())}
