"""``python -m bench``: the tables on stdout, the figures in a JSON file.

``--only NAMES`` picks contenders, ``--studies NAMES`` what else is measured beside the table (``table`` is the side-by-side runs
themselves), ``--soak SECONDS`` runs a soak and nothing else. Exit status 1 if any request of the side-by-side runs failed.
"""

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import report
from bench.contenders import CONTENDERS, loads_of, started
from bench.processes import read_json, running_module
from bench.run import Measurement, run_round
from bench.scenarios import SCENARIOS
from bench.studies import STUDIES, Bench, soak

TABLE = "table"
Table = dict[tuple[str, str], Measurement]
"""By contender and scenario."""


def main() -> None:
    arguments = parse()
    # So that a `kill` unwinds the context managers below and leaves no child behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder: Path = arguments.out.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    load_average = os.getloadavg()[0]
    log = folder / "upstream.log"
    with running_module("bench.upstream", log=log) as upstream:
        bench = Bench(
            upstream_port=int(read_json(upstream, log)["port"]),
            upstream_pid=upstream.pid,
            folder=folder,
            names=tuple(arguments.only),
        )
        for measurements, studies in measure(bench, arguments):
            # After each study: what is measured is not lost to what breaks later.
            document = report.report(summarized(measurements), studies, arguments.rounds, load_average)
            report.write_json(document, arguments.out)
    # Wide enough for the tables where stdout is no terminal.
    report.print_tables(document, Console(width=None if sys.stdout.isatty() else 176))
    print(f"written to {arguments.out}; logs and configurations in {folder}/")
    sys.exit(1 if any(measurement.failures for measurement in measurements.values()) else 0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="What a delta costs, side by side.")
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS), help="contenders")
    everything = [TABLE, *STUDIES]
    parser.add_argument("--studies", nargs="+", choices=everything, default=everything, help="what is measured (default: all)")
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="half load for so long, and nothing else")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each contender under each load (default: 2)")
    parser.add_argument("--out", type=Path, default=Path("out/bench.json"), help="default: out/bench.json")
    return parser.parse_args()


def measure(bench: Bench, arguments: argparse.Namespace) -> Iterator[tuple[Table, dict[str, Any]]]:
    """What has been measured side by side, and the studies by name: again with each that is done."""
    if arguments.soak is not None:
        yield {}, {"soak": soak(bench, arguments.soak)}
        return
    studies: dict[str, Any] = {}
    table = measure_table(bench, arguments.rounds) if TABLE in arguments.studies else {}
    yield table, studies
    for name, study in STUDIES.items():
        if name in arguments.studies:
            studies[name] = study(bench)
            yield table, studies


def summarized(measurements: Table) -> report.Summaries:
    summaries: report.Summaries = {name: {} for name, _ in measurements}
    for (name, scenario), measurement in measurements.items():
        summaries[name][scenario] = measurement.summary()
    return summaries


def measure_table(bench: Bench, rounds: int) -> Table:
    """The machine's moods change slowly, so contenders take turns within a round."""
    measurements = {(name, scenario.name): Measurement() for name in bench.names for scenario in loads_of(name)}
    with started(list(bench.names), bench.upstream_port, bench.folder) as contenders:
        for number in range(1, rounds + 1):
            for scenario in SCENARIOS:
                for name, contender in contenders.items():
                    if scenario in loads_of(name):
                        print(f"round {number} of {rounds}: {scenario.name}, {name}", file=sys.stderr)
                        run_round(contender, scenario, bench.upstream_pid, bench.folder, measurements[name, scenario.name])
    return measurements


if __name__ == "__main__":
    main()
