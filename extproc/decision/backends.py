"""Whether two readings come from the same server process, from its successor, or from two servers behind one address.

A restart is seen by its later start time (R24), or, where the page has none, by a counter that went back (HL-06). An address
whose start time goes back, or whose counters go back a second time without an outage between, is a load balancer (R25): a
restarted model server is away for minutes, and its predecessor never returns.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from extproc.decision.exposition import COUNTERS, EngineReading, Page

STARTS_KEPT: Final = 16
"""Start times remembered of one address; a balancer in front of more backends shows an earlier one sooner than that."""


class Backend(StrEnum):
    """Whose page the newest reading is."""

    FIRST = "first"
    SAME = "same"
    RESTARTED = "restarted"
    SEVERAL = "several"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """What is remembered of the processes behind one address.

    ``readings`` counts those of the present process in a row; ``drops`` the times that counters went back since the last
    outage.
    """

    latest: Page | None = None
    starts_seen: tuple[float, ...] = ()
    drops: int = 0
    readings: int = 0
    was_away: bool = False

    @property
    def is_settled(self) -> bool:
        """Whether enough readings agree that something may be asked of this process and of no other.

        Two with the same start time; without start times one more, since counters tell two backends apart only when they
        go back.
        """
        if self.latest is None:
            return False
        return self.readings >= (2 if self.latest.started_at_s is not None else 3)

    def after_outage(self) -> "Backends":
        """The connection was refused: whoever answers next without a start time is taken for another process."""
        return replace(self, drops=0, was_away=True)

    def after(self, page: Page) -> tuple["Backends", Backend]:
        """Compare one more page with the last one."""
        backend, is_drop = self._compare(page)
        start = page.started_at_s
        starts = self.starts_seen if start is None or start in self.starts_seen else (*self.starts_seen, start)
        return (
            Backends(
                latest=page,
                starts_seen=starts[-STARTS_KEPT:],
                drops=self.drops + is_drop,
                readings=self.readings + 1 if backend is Backend.SAME else 1,
            ),
            backend,
        )

    def _compare(self, page: Page) -> tuple[Backend, bool]:
        last, start = self.latest, page.started_at_s
        if last is None:
            return Backend.FIRST, False
        if start is not None and last.started_at_s is not None and start != last.started_at_s:
            is_older = start < last.started_at_s or start in self.starts_seen
            return (Backend.SEVERAL if is_older else Backend.RESTARTED), False
        if start is None and last.started_at_s is None and self.was_away:
            return Backend.RESTARTED, False
        if (start is None) != (last.started_at_s is None) or _went_back(last, page):
            return (Backend.SEVERAL if self.drops else Backend.RESTARTED), True
        return Backend.SAME, False


def _went_back(earlier: Page, later: Page) -> bool:
    """Whether any engine's counter is lower than before, or no engine is the same any more."""
    pairs = pair_engines(earlier, later)
    return not pairs or any(
        before.values[series] > after.values[series]
        for before, after in pairs
        for series in COUNTERS
        if series in before.values and series in after.values
    )


def pair_engines(earlier: Page, later: Page) -> list[tuple[EngineReading, EngineReading]]:
    """The readings of the engines that both pages have, in the later page's order."""
    before = {engine_key(engine): engine for engine in earlier.engines}
    return [(before[engine_key(engine)], engine) for engine in later.engines if engine_key(engine) in before]


def engine_key(engine: EngineReading) -> str:
    """What an engine is told apart by within one page."""
    return f"{engine.model}\n{engine.engine}"
