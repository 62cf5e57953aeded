"""Health verdicts as metrics: which one each replica has, and how often verdicts change."""

from extproc.decision.verdicts import Verdict
from extproc.telemetry import instruments as metric
from extproc.telemetry.meters import Meters


class VerdictMetrics:
    """Told of every change. Invariant: of one replica's series at most one is 1."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._verdicts: dict[str, Verdict] = {}

    def changed(self, replica: str, verdict: Verdict) -> None:
        """The replica has another verdict now."""
        before = self._verdicts.get(replica)
        if before is verdict:
            return
        self.forgotten(replica)
        self._verdicts[replica] = verdict
        self._meters.set(metric.VERDICT, {"replica": replica, "verdict": verdict}, 1)
        self._meters.count(metric.VERDICT_CHANGES, {"verdict": verdict})

    def forgotten(self, replica: str) -> None:
        """The replica has left the pool."""
        before = self._verdicts.pop(replica, None)
        if before is not None:
            self._meters.set(metric.VERDICT, {"replica": replica, "verdict": before}, 0)
