"""A study's files: ``storm.svg``, ``index.html`` with the picture and the table, ``storm.json`` for machines."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from extproc import __version__
from extproc.faults.pages import render
from extproc.faults.storm.callers import NAIVE_ATTEMPTS_MAX, NAIVE_LATE_MS, Ending
from extproc.faults.storm.plot import NAMES, draw
from extproc.faults.storm.study import Storm, Terms

FORMAT: Final = 1
COLUMNS: Final = (
    "dead",
    "conduct",
    "repeats",
    "allowed",
    "attempts, worst second",
    "load, highest",
    "read again",
    "first delta p50 / p99, s",
    "complete",
    "interrupted",
    "refused",
    "gave up",
)
"""Of the table, on paper and on screen alike."""


def rows(storms: Sequence[Storm]) -> list[tuple[str, ...]]:
    """The table's cells under COLUMNS."""
    return [_row(storm) for storm in storms]


def write_study(storms: Sequence[Storm], *, seed: int, terms: Terms, directory: Path) -> Path:
    """Write all files; the page."""
    directory.mkdir(parents=True, exist_ok=True)
    naive = {"attempts_max": NAIVE_ATTEMPTS_MAX, "late_ms": NAIVE_LATE_MS}
    document = {"format": FORMAT, "deltafence": __version__, "seed": seed, "terms": asdict(terms), "naive": naive}
    document["storms"] = [storm.document() for storm in storms]
    (directory / "storm.json").write_text(json.dumps(document, indent=1))
    plot = draw(storms)
    (directory / "storm.svg").write_text(render("storm.svg", plot=plot))
    index = directory / "index.html"
    page = render(
        "storm.html", plot=plot, seed=seed, terms=terms, naive=naive, columns=COLUMNS, rows=rows(storms), version=__version__
    )
    index.write_text(page)
    return index


def _row(storm: Storm) -> tuple[str, ...]:
    median, late = storm.first_delta_s
    return (
        f"{storm.share_percent} %",
        NAMES[storm.conduct],
        str(storm.repeats),
        "no bound" if storm.repeats_allowed is None else str(storm.repeats_allowed),
        f"x {storm.attempts_growth:.1f}",
        f"{storm.load_percent_max:.0f} %",
        f"{storm.repeats_read_percent:.1f} %",
        f"{median:.1f} / {late:.1f}",
        *(str(storm.endings.get(ending, 0)) for ending in Ending if ending is not Ending.UNDER_WAY),
    )
