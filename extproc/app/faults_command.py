"""``deltafence faults``: break a gateway at every point of the token loop, judged by what was seen from outside (R17, R18)."""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.table import Table

from extproc.app.children import EXEC_BOUND
from extproc.app.envoy_process import EnvoyMissingError, find_envoy
from extproc.faults.checker import ending_of
from extproc.faults.gateway import Commands, GatewayError
from extproc.faults.points import Point, catalogue, in_order, point_of, select
from extproc.faults.replay import NothingDecidedError, judge_again, replay_decisions
from extproc.faults.report import write_report
from extproc.faults.storm.plot import NAMES
from extproc.faults.storm.publish import COLUMNS, rows, write_study
from extproc.faults.storm.study import Terms, study
from extproc.faults.suite import Summary, run_suite
from extproc.faults.trace import Trace, read_trace

TABLE_WIDTH: Final = 160
"""Of a table that goes into a file or a pipe."""
OWN_COMMAND: Final = (sys.executable, "-m", "extproc.app")


def own_commands(processor: tuple[str, ...] = (*OWN_COMMAND, "processor"), envoy: Path | None = None) -> Commands:
    """This installation's gateway. Its processes end with this one, however that ends. Raises EnvoyMissingError."""
    bound = (sys.executable, "-I", "-S", str(EXEC_BOUND), str(os.getpid()))
    return Commands(
        processor=(*bound, *processor),
        envoy_config=(*OWN_COMMAND, "envoy-config"),
        envoy=(*bound, str(find_envoy(envoy))),
    )


@click.group()
def faults() -> None:
    """Break a gateway on purpose, and judge what its clients are left with."""


@faults.command()
@click.option("--seed", default=0, show_default=True, help="Decides the order of the points.")
@click.option("--limit", type=click.IntRange(1), help="Only so many points, the first of the order.")
@click.option(
    "--select", "globs", multiple=True, metavar="GLOB", help="Only points with such a key: kind.api.form.place.attempt."
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/faults"), show_default=True, help="Report and traces.")
@click.option("--envoy", type=click.Path(path_type=Path), help="Envoy's binary.  [default: the envoy extra's, else PATH]")
@click.option("--list", "only_list", is_flag=True, help="Print the points' keys and do nothing.")
def run(*, seed: int, limit: int | None, globs: tuple[str, ...], out: Path, envoy: Path | None, only_list: bool) -> None:
    """Run the suite. Status 0 only if every promise was kept at every point."""
    points = in_order(select(catalogue(), globs), seed)[:limit]
    if not points:
        raise click.BadParameter("no point has such a key", param_hint="--select")
    if only_list:
        click.echo("\n".join(point.key for point in points))
        return
    summary = _run(points, seed=seed, out=out, envoy=envoy)
    index = write_report(summary, out)
    _tell(summary)
    click.echo(f"  {index}")
    sys.exit(0 if summary.is_green else 1)


def _run(points: Sequence[Point], *, seed: int, out: Path, envoy: Path | None) -> Summary:
    traces = out / "traces"
    traces.mkdir(parents=True, exist_ok=True)
    try:
        commands = own_commands(envoy=envoy)
        return asyncio.run(run_suite(points, commands=commands, seed=seed, traces=traces, progress=_Progress(len(points))))
    except (EnvoyMissingError, GatewayError) as problem:
        raise click.ClickException(str(problem)) from problem


@faults.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--real", is_flag=True, help="Also bring its fault point about again, on a stage of its own.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/faults-replay"), show_default=True, help="For --real.")
@click.option("--envoy", type=click.Path(path_type=Path), help="Envoy's binary.  [default: the envoy extra's, else PATH]")
def replay(file: Path, *, real: bool, out: Path, envoy: Path | None) -> None:
    """Run a trace again: its decisions through the pure core, its evidence before the judge.

    Status 0 only if every decision comes out as recorded, and no promise is broken.
    """
    try:
        trace = read_trace(file)
        decisions = replay_decisions(trace)
        violations = judge_again(trace)
    except (ValueError, LookupError, NothingDecidedError) as problem:
        raise click.ClickException(str(problem)) from problem
    click.echo(f"{trace.evidence.name}: seed {trace.seed}, {trace.path}, model revision {trace.model_revision}")
    for decision in decisions:
        arrow = f"{decision.before} -> {decision.after}"
        click.echo(f"  {arrow:<22} {decision.event:<20} {', '.join(decision.effects) or '-'}")
        if decision.difference is not None:
            click.echo(f"    DIFFERENT: {decision.difference}")
    for violation in violations:
        click.echo(f"  BROKEN {violation.invariant}: {violation.how}")
    is_green = not violations and all(decision.difference is None for decision in decisions)
    if real:
        is_green &= _bring_about_again(trace, out, envoy)
    sys.exit(0 if is_green else 1)


@faults.command()
@click.option("--seed", default=0, show_default=True, help="Decides clients, prompts, answers and which replicas die.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/storm"), show_default=True, help="Page, picture, JSON.")
def storm(*, seed: int, out: Path) -> None:
    """What the retry budget does when many of 1,000 replicas die at once. A study in virtual time; breaks nothing."""
    terms = Terms()
    storms = study(seed, terms, lambda one: click.echo(f"{one.share_percent} % die, {NAMES[one.conduct]} ...", err=True))
    table = Table(*COLUMNS)
    for row in rows(storms):
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else TABLE_WIDTH).print(table)
    click.echo(write_study(storms, seed=seed, terms=terms, directory=out))


def _bring_about_again(trace: Trace, out: Path, envoy: Path | None) -> bool:
    summary = _run([point_of(trace.point)], seed=trace.seed, out=out, envoy=envoy)
    (again,) = summary.judged
    then, now = ending_of(trace.evidence), again.ending
    attempts = (len(trace.evidence.attempts), len(again.trace.evidence.attempts))
    click.echo(f"recorded: {then}, {attempts[0]} attempts; again: {now}, {attempts[1]} attempts")
    return summary.is_green


class _Progress:
    """One line a round, and every broken promise as it is found."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._told: set[str] = set()

    def __call__(self, summary: Summary, what: str) -> None:
        click.echo(f"[{len(summary.judged):>5}/{self._total}] {what}")
        for name, violation in summary.violations:
            if (line := f"  BROKEN {name}: {violation.invariant}: {violation.how}") not in self._told:
                self._told.add(line)
                click.echo(line)


def _tell(summary: Summary) -> None:
    endings = Counter(str(one.ending) for one in summary.judged)
    click.echo(f"seed {summary.seed}: {len({one.point for one in summary.judged})} distinct fault points")
    click.echo("  " + ", ".join(f"{count} {ending}" for ending, count in endings.most_common()))
    for complaint in summary.complaints:
        click.echo(f"  BROKEN gateway log: {complaint}")
    click.echo(f"  {len(summary.violations)} promises broken" if not summary.is_green else "  every promise was kept")
