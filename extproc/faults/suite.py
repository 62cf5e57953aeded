"""A whole run: points in the order of a seed, stage after stage, round after round, each request judged and kept."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from extproc import __version__
from extproc.faults.apis import PATHS
from extproc.faults.ballast import Ballast
from extproc.faults.checker import check, ending_of
from extproc.faults.evidence import Evidence
from extproc.faults.expectations import Ending
from extproc.faults.gateway import Commands
from extproc.faults.invariants import Violation
from extproc.faults.observation import Observer, Trial
from extproc.faults.points import Kind, Point, Scope, Setting
from extproc.faults.rounds import RoundResult, Rounds, body_of
from extproc.faults.stage import Stage, running_stage
from extproc.faults.trace import FORMAT, Trace, read_decisions, write_trace

REQUESTS_AT_ONCE: Final = 24
HELD_AT_ONCE: Final = 48
TRIES_MAX: Final = 20
PATIENT_S: Final = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One point, brought about and judged."""

    point: Point
    trace: Trace
    ending: Ending

    @property
    def is_held(self) -> bool:
        """Whether every promise was kept."""
        return not self.trace.violations


@dataclass(slots=True, kw_only=True)
class Summary:
    """A run so far."""

    seed: int
    judged: list[Judged] = field(default_factory=list)
    stray: list[Trace] = field(default_factory=list)
    """Requests that were sent to be struck, were spared, and yet broke a promise."""
    complaints: list[str] = field(default_factory=list)
    """What a processor's own log says that it never should."""

    @property
    def is_green(self) -> bool:
        return all(one.is_held for one in self.judged) and not self.stray and not self.complaints

    @property
    def violations(self) -> list[tuple[str, Violation]]:
        """Every broken promise, with the name of its request."""
        traces = [*(one.trace for one in self.judged), *self.stray]
        return [(trace.evidence.name, violation) for trace in traces for violation in trace.violations]


Progress = Callable[[Summary, str], None]
"""Told after each round, with what the round was."""


async def run_suite(
    points: Sequence[Point], *, commands: Commands, seed: int, traces: Path, progress: Progress, only: Setting | None = None
) -> Summary:
    """Bring about and judge every point. Raises GatewayError where a stage does not come up or does not mend."""
    summary = Summary(seed=seed)
    for setting in Setting:
        own = [point for point in points if point.row.setting is setting]
        if own and only in (None, setting):
            async with running_stage(setting, commands) as stage:
                await _StageRun(stage=stage, summary=summary, traces=traces, progress=progress).run(own)
                summary.complaints += [f"{name}: {line}" for name, line in stage.complaints()]
    return summary


@dataclass(slots=True, kw_only=True)
class _StageRun:
    """The rounds of one stage."""

    stage: Stage
    summary: Summary
    traces: Path
    progress: Progress
    _decisions_offset: int = 0
    _numbers: dict[Point, int] = field(default_factory=dict)

    async def run(self, points: Sequence[Point]) -> None:
        """All of them; what a round has spared comes again in the next one."""
        rounds = Rounds(stage=self.stage, observer=Observer(stage=self.stage))
        for batch in _batches_of_requests(points):
            self._settle(await rounds.run_requests([self._trial(point) for point in batch]), "requests")
        # It makes no progress, which is what a watchful stage would call hung.
        ballast = Ballast(stage=self.stage, each=HELD_AT_ONCE) if self.stage.settings.hung_after_s > PATIENT_S else None
        for kind in _kinds(points, Scope.REPLICA):
            left = [point for point in points if point.kind is kind]
            while left:
                if ballast is not None:
                    await ballast.steady()
                held, left = left[:HELD_AT_ONCE], left[HELD_AT_ONCE:]
                result = await rounds.run_on_replicas(kind, [self._trial(point) for point in held])
                left = [*(trial.point for trial in result.spared if trial.number < TRIES_MAX), *left]
                self._settle(result, kind)
        if ballast is not None:
            ballast.drop()
        for kind in _kinds(points, Scope.GATEWAY):
            for batch in _batches([point for point in points if point.kind is kind], HELD_AT_ONCE):
                self._settle(await rounds.run_on_gateway(kind, [self._trial(point) for point in batch]), kind)

    def _trial(self, point: Point) -> Trial:
        self._numbers[point] = self._numbers.get(point, 0) + 1
        return Trial(point=point, number=self._numbers[point])

    def _settle(self, result: RoundResult, what: str) -> None:
        decisions, self._decisions_offset = read_decisions(self.stage.gateway.decisions, self._decisions_offset)
        for trial, evidence in result.judged.items():
            trace = self._trace(trial, evidence, check(evidence, trial.point), decisions)
            self.summary.judged.append(Judged(point=trial.point, trace=trace, ending=ending_of(evidence)))
        for trial, evidence in result.spared.items():
            violations = check(evidence)
            if violations:
                self.summary.stray.append(self._trace(trial, evidence, violations, decisions))
        self.progress(self.summary, what)

    def _trace(
        self,
        trial: Trial,
        evidence: Evidence,
        violations: Sequence[Violation],
        decisions: Mapping[str, Sequence[Mapping[str, Any]]],
    ) -> Trace:
        request_ids = {attempt.request_id for attempt in evidence.attempts} | {line.request_id for line in evidence.access}
        revisions = [entry.detail.get("model_revision") for entry in evidence.journal if "model_revision" in entry.detail]
        trace = Trace(
            format=FORMAT,
            seed=self.summary.seed,
            point=trial.point.key,
            path=PATHS[trial.point.api],
            body=body_of(trial.point),
            model_revision=str(revisions[0]) if revisions else None,
            evidence=evidence,
            decisions=tuple(line for request_id in sorted(filter(None, request_ids)) for line in decisions.get(request_id, ())),
            violations=tuple(violations),
            gateway=__version__,
        )
        write_trace(trace, self.traces)
        return trace


def _batches(points: Sequence[Point], size: int) -> Iterator[Sequence[Point]]:
    return (points[start : start + size] for start in range(0, len(points), size))


def _batches_of_requests(points: Sequence[Point]) -> Iterator[Sequence[Point]]:
    """A tool that dies, dies for everybody: those points are by themselves."""
    alone = [point for point in points if point.kind is Kind.TOOL_KILLED]
    scopes = (Scope.REQUEST, Scope.CLIENT)
    yield from _batches([point for point in points if point.row.scope in scopes and point not in alone], REQUESTS_AT_ONCE)
    yield from _batches(alone, REQUESTS_AT_ONCE)


def _kinds(points: Sequence[Point], scope: Scope) -> list[Kind]:
    return list(dict.fromkeys(point.kind for point in points if point.row.scope is scope))
