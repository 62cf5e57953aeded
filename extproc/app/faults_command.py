"""``deltafence faults``: break a gateway at every point of the token loop, judged by what was seen from outside (R17, R18)."""

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import click

from extproc.app.children import EXEC_BOUND
from extproc.app.envoy_process import EnvoyMissingError, find_envoy
from extproc.faults.gateway import Commands, GatewayError
from extproc.faults.points import catalogue, in_order, select
from extproc.faults.suite import Summary, run_suite

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
    traces = out / "traces"
    traces.mkdir(parents=True, exist_ok=True)
    try:
        summary = asyncio.run(
            run_suite(points, commands=own_commands(envoy=envoy), seed=seed, traces=traces, progress=_Progress(len(points)))
        )
    except (EnvoyMissingError, GatewayError) as problem:
        raise click.ClickException(str(problem)) from problem
    _tell(summary)
    sys.exit(0 if summary.is_green else 1)


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
