"""Replicas as pages and JSON show them: who there is, what health says of each, and why."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from extproc.decision.health_report import Json
from extproc.replicas.roster import Roster, Standing

IN_DOUBT: Final = "in_doubt"

Reports = Callable[[], Mapping[str, Json]]
"""Health's report of each replica by destination (decision.health_report); empty where nothing watches them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRow:
    """One replica. ``verdict`` is ``unwatched`` where health does not look at it."""

    destination: str
    url: str
    identity: str
    attempts: int
    """Of this processor."""
    standing: str
    """Whether it gets new attempts: a Standing, or ``in_doubt`` where others come first until health has looked."""
    verdict: str
    evidence: str
    for_s: float | None


def nobody_watches() -> Mapping[str, Json]:
    """Where no health monitor runs."""
    return {}


def replica_rows(roster: Roster, reports: Reports = nobody_watches) -> Sequence[ReplicaRow]:
    """Every known replica, in the order of its address."""
    reported = reports()
    rows = []
    for replica in roster.replicas:
        report = reported.get(replica.destination, {})
        for_s = report.get("for_s")
        rows.append(
            ReplicaRow(
                destination=replica.destination,
                url=replica.url,
                identity=replica.identity,
                attempts=roster.running(replica.destination),
                standing=_shown_standing(roster, replica.destination),
                verdict=str(report.get("verdict", "unwatched")),
                evidence=str(report.get("evidence", "no health monitor runs in this processor")),
                for_s=for_s if isinstance(for_s, int | float) else None,
            )
        )
    return sorted(rows, key=lambda row: row.destination)


def _shown_standing(roster: Roster, destination: str) -> str:
    """Doubt puts others first; where nothing is placed at all, it changes nothing."""
    standing = roster.standing(destination)
    return IN_DOUBT if roster.is_doubted(destination) and standing is not Standing.WITHHELD else str(standing)
