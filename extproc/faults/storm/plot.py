"""The study as lines: one panel a share of dead replicas, the survivors' load over time under each conduct. Pure geometry."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from extproc.faults.storm.callers import Conduct
from extproc.faults.storm.study import Storm

PANEL_WIDTH: Final = 270.0
PANEL_HEIGHT: Final = 230.0
GAP: Final = 22.0
LEFT: Final = 48.0
TOP: Final = 52.0
BOTTOM: Final = 58.0
LOAD_STEP_PERCENT: Final = 50
TIME_STEP_S: Final = 20

NAMES: Final = {Conduct.NO_RETRIES: "no retries", Conduct.NAIVE: "naive retries", Conduct.DELTAFENCE: "deltafence"}
"""As a legend has them."""


@dataclass(frozen=True, slots=True)
class Line:
    """One conduct's load. ``points`` as SVG's polyline takes them."""

    conduct: Conduct
    points: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A grid line and its number."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One share of dead replicas."""

    x: float
    title: str
    zero: float
    """Where the deaths are."""
    lines: tuple[Line, ...]
    seconds: tuple[Tick, ...]


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of the legend."""

    conduct: Conduct
    x: float
    name: str


@dataclass(frozen=True, slots=True)
class Plot:
    """The whole picture."""

    width: float
    height: float
    top: float
    bottom: float
    panel_width: float
    full: float
    """Where every slot of the survivors is taken: above it requests wait."""
    panels: tuple[Panel, ...]
    loads: tuple[Tick, ...]
    keys: tuple[Key, ...]


def draw(storms: Sequence[Storm]) -> Plot:
    """The plot of a study."""
    shares = sorted({storm.share_percent for storm in storms})
    loads = [load for storm in storms for _, load in storm.load_percent]
    highest = LOAD_STEP_PERCENT * math.ceil(max(loads) / LOAD_STEP_PERCENT)
    panels = tuple(
        _panel(LEFT + number * (PANEL_WIDTH + GAP), [storm for storm in storms if storm.share_percent == share], highest)
        for number, share in enumerate(shares)
    )
    return Plot(
        width=LEFT + len(shares) * (PANEL_WIDTH + GAP),
        height=TOP + PANEL_HEIGHT + BOTTOM,
        top=TOP,
        bottom=TOP + PANEL_HEIGHT,
        panel_width=PANEL_WIDTH,
        full=_y(100, highest),
        panels=panels,
        loads=tuple(Tick(_y(load, highest), f"{load} %") for load in range(0, highest + 1, LOAD_STEP_PERCENT)),
        keys=tuple(Key(conduct, LEFT + number * 150, NAMES[conduct]) for number, conduct in enumerate(Conduct)),
    )


def _panel(x: float, storms: Sequence[Storm], highest: float) -> Panel:
    begin, end = storms[0].load_percent[0][0], storms[0].load_percent[-1][0]

    def across(at_s: float) -> float:
        return round(x + PANEL_WIDTH * (at_s - begin) / (end - begin), 1)

    lines = tuple(
        Line(storm.conduct, " ".join(f"{across(at_s)},{_y(load, highest)}" for at_s, load in storm.load_percent))
        for storm in storms
    )
    seconds = tuple(Tick(across(at_s), f"{at_s} s") for at_s in range(0, int(end) + 1, TIME_STEP_S))
    return Panel(x, f"{storms[0].share_percent} % die", across(0.0), lines, seconds)


def _y(load: float, highest: float) -> float:
    return round(TOP + PANEL_HEIGHT * (1 - load / highest), 1)
