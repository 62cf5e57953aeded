"""What a run leaves behind: pages for people (``index.html``, one page for each kind of fault) and ``report.json`` for machines.

Everything on a page is escaped, and nothing on it is a script or comes from elsewhere: it opens from a disk.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from extproc import __version__
from extproc.faults.checker import read_answer
from extproc.faults.expectations import Ending, expected_endings
from extproc.faults.invariants import RULES, Invariant
from extproc.faults.pages import render
from extproc.faults.picture import Picture, draw
from extproc.faults.points import Kind
from extproc.faults.suite import Judged, Summary
from extproc.faults.trace import Trace

FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One point as its page shows it."""

    judged: Judged
    picture: Picture
    expected: tuple[str, ...]
    text: str
    """What the client read."""

    @property
    def trace(self) -> Trace:
        return self.judged.trace


@dataclass(frozen=True, slots=True, kw_only=True)
class KindLine:
    """One kind in the index."""

    kind: Kind
    points: int
    broken: int
    endings: tuple[tuple[Ending, int], ...]

    @property
    def page(self) -> str:
        return f"{self.kind}.html"


def write_report(summary: Summary, directory: Path) -> Path:
    """Write all files; the index."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "report.json").write_text(json.dumps(_document(summary), indent=1))
    kinds = [_kind_line(kind, summary.judged) for kind in Kind if any(one.point.kind is kind for one in summary.judged)]
    for line in kinds:
        scenarios = [_scenario(one) for one in _in_page_order(summary.judged) if one.point.kind is line.kind]
        (directory / line.page).write_text(render("kind.html", summary=summary, line=line, scenarios=scenarios))
    index = directory / "index.html"
    broken = [_scenario(one) for one in _in_page_order(summary.judged) if not one.is_held]
    asked = len(summary.judged) + len(summary.stray)
    page = render(
        "index.html",
        summary=summary,
        kinds=kinds,
        broken=broken,
        asked=asked,
        invariants=[*RULES, Invariant.EXPECTED_ENDING],
        broken_by=Counter(violation.invariant for _, violation in summary.violations),
        version=__version__,
        written_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    index.write_text(page)
    return index


def _document(summary: Summary) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "gateway": __version__,
        "seed": summary.seed,
        "green": summary.is_green,
        "distinct_points": len({one.point for one in summary.judged}),
        "points": [_point(one.trace, one.ending) | {"expected": _expected(one)} for one in summary.judged],
        "stray": [_point(trace, None) for trace in summary.stray],
        "complaints": summary.complaints,
    }


def _point(trace: Trace, ending: Ending | None) -> dict[str, Any]:
    return {
        "point": trace.point,
        "ending": ending,
        "attempts": [attempt.replica for attempt in trace.evidence.attempts],
        "model_revision": trace.model_revision,
        "trace": f"traces/{trace.evidence.name}.json",
        "violations": [{"invariant": violation.invariant, "how": violation.how} for violation in trace.violations],
    }


def _expected(judged: Judged) -> list[str]:
    return sorted(expected_endings(judged.point))


def _kind_line(kind: Kind, judged: Iterable[Judged]) -> KindLine:
    own = [one for one in judged if one.point.kind is kind]
    endings = Counter(one.ending for one in own)
    return KindLine(kind=kind, points=len(own), broken=sum(not one.is_held for one in own), endings=tuple(endings.most_common()))


def _scenario(judged: Judged) -> Scenario:
    answer = read_answer(judged.trace.evidence)
    return Scenario(
        judged=judged,
        picture=draw(judged.trace.evidence, answer),
        expected=tuple(_expected(judged)),
        text=answer.text,
    )


def _in_page_order(judged: Sequence[Judged]) -> list[Judged]:
    """What is broken first, then by name."""
    return sorted(judged, key=lambda one: (one.is_held, one.point.key))
