"""``python -m bench [--only NAMES] [--rounds N] [--out FILE]``: the tables on stdout, the figures in a JSON file.

Exit status 1 if any request of any contender failed.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

from rich.console import Console

from bench import report
from bench.contenders import CONTENDERS, started
from bench.processes import read_json, running_module
from bench.run import Measurement, run_round
from bench.scenarios import SCENARIOS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="What a delta costs, side by side.")
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS), help="contenders")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each contender under each load (default: 2)")
    parser.add_argument("--out", type=Path, default=Path("out/bench.json"), help="default: out/bench.json")
    arguments = parser.parse_args()
    # So that a `kill` unwinds the context managers below and leaves no child behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    logs: Path = arguments.out.with_suffix("")
    logs.mkdir(parents=True, exist_ok=True)
    load_average = os.getloadavg()[0]
    measurements = measure_all(arguments.only, arguments.rounds, logs)
    summaries: report.Summaries = {name: {} for name in arguments.only}
    for (name, scenario), measurement in measurements.items():
        summaries[name][scenario] = measurement.summary()
    document = report.report(summaries, arguments.rounds, load_average)
    report.write_json(document, arguments.out)
    # Wide enough for the table where stdout is no terminal.
    report.print_tables(document, Console(width=None if sys.stdout.isatty() else 176))
    print(f"written to {arguments.out}; logs and configurations in {logs}/")
    sys.exit(1 if any(measurement.failures for measurement in measurements.values()) else 0)


def measure_all(names: list[str], rounds: int, folder: Path) -> dict[tuple[str, str], Measurement]:
    """(contender, scenario) to what was measured; logs and configurations go to ``folder``.

    The machine's moods change slowly, so contenders take turns within a round.
    """
    measurements = {(name, scenario.name): Measurement() for name in names for scenario in SCENARIOS}
    upstream_log = folder / "upstream.log"
    with running_module("bench.upstream", log=upstream_log) as upstream:
        port = int(read_json(upstream, upstream_log)["port"])
        with started(names, port, folder) as contenders:
            for round_number in range(1, rounds + 1):
                for scenario in SCENARIOS:
                    for name, contender in contenders.items():
                        print(f"round {round_number} of {rounds}: {scenario.name}, {name}", file=sys.stderr)
                        run_round(contender, scenario, upstream.pid, folder, measurements[name, scenario.name])
    return measurements


if __name__ == "__main__":
    main()
