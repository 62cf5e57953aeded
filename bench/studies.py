"""What one table can't show: how a figure moves with the streams, the load, the processes, the time.

Each study takes a replica's port, starts what it measures afresh and returns its figures as the JSON file has them.
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from bench import measure
from bench.contender import Contender
from bench.contenders import CONTENDERS, PROCESSORS_MAX, deltafence, started
from bench.run import Measurement, run_round
from bench.scenarios import DELTAS, Scenario

CONCURRENCY: Final = (25, 100, 200, 400)
MEMORY_STREAMS: Final = (500, 1_000, 2_000)
OPENS_PER_S: Final = 400
"""How fast the memory study opens its streams: that is no burst, and it is over in 5 s."""
PROCESSORS: Final = (1, PROCESSORS_MAX)
SATURATED_STREAMS: Final = 400
SOAK_STREAMS: Final = 200
SOAK_PIECE_S: Final = 30.0
SOAK_JUDGED_S: Final = 1_200.0
"""Before that the journal in memory still grows towards its bound of 10,000 requests, and nothing can be said."""

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all studies need."""

    upstream_port: int
    upstream_pid: int
    folder: Path
    names: tuple[str, ...]
    """The contenders that were asked for."""

    def run(self, contender: Contender, scenario: Scenario) -> Measurement:
        """One run, told on stderr."""
        print(f"{scenario.name}: {scenario.streams} streams x {scenario.deltas_per_s:.0f}/s", file=sys.stderr)
        measurement = Measurement()
        run_round(contender, scenario, self.upstream_pid, self.folder, measurement)
        return measurement

    def chosen(self, *names: str) -> list[str]:
        """Those of ``names`` that were asked for."""
        return [name for name in names if name in self.names]


def concurrency(bench: Bench) -> Figures:
    """CPU per delta at the same pace of each stream, for more and more of them."""
    names = bench.chosen(*(name for name in CONTENDERS if name != "litellm"))
    points: dict[str, list[Figures]] = {name: [] for name in names}
    with started(names, bench.upstream_port, bench.folder) as contenders:
        for streams in CONCURRENCY:
            for name, contender in contenders.items():
                scenario = replace(DELTAS, name=f"concurrency, {name}", streams=streams)
                points[name].append({"streams": streams} | _per_delta(bench.run(contender, scenario)))
    return points


def memory(bench: Bench) -> Figures:
    """Resident memory with so many open streams, and what each adds to the idle process.

    Idle is a process that has served a few: what it loads with its first request belongs to no stream.
    """
    figures: Figures = {}
    for name in bench.chosen("deltafence", "deltafence_http2", "echo"):
        with CONTENDERS[name](bench.upstream_port, bench.folder) as contender:
            bench.run(contender, _held(f"memory, {name}", 10))
            idle_mib, envoy_idle_mib = measure.rss_mib(contender.processor_pids), measure.rss_mib(contender.envoy_pids)
            points = [{"streams": 0, "processor_mib": round(idle_mib, 1), "envoy_mib": round(envoy_idle_mib, 1), "failed": 0}]
            for streams in MEMORY_STREAMS:
                run = bench.run(contender, _held(f"memory, {name}", streams))
                points.append(
                    {
                        "streams": streams,
                        "processor_mib": round(run.processor_rss_mib, 1),
                        "envoy_mib": round(run.envoy_rss_mib, 1),
                        "failed": run.failures.total(),
                    }
                )
            figures[name] = {
                "points": points,
                "processor_kib_per_stream": _kib_per_stream(points, "processor_mib"),
                "envoy_kib_per_stream": _kib_per_stream(points, "envoy_mib"),
            }
    return figures


def saturation(bench: Bench) -> Figures:
    """Twice the load that one process carries, beside that load: what it carries is a core's worth of deltas at one a message.

    Only on grpcio: what our own HTTP/2 carries is more than the load generator can ask for.
    """
    if not bench.chosen("deltafence"):
        return {}
    with deltafence(bench.upstream_port, bench.folder, "saturation") as contender:
        carried_per_s = _carried_per_s(bench, contender)
        loads = {"half": carried_per_s / 2, "twice": carried_per_s * 2}
        runs = {
            name: bench.run(contender, _renewed(f"saturation, {name}", SATURATED_STREAMS, load)) for name, load in loads.items()
        }
    return {"carried_per_s": round(carried_per_s)} | {
        name: {"offered_per_s": round(loads[name])} | _under_load(run) for name, run in runs.items()
    }


def scaling(bench: Bench) -> Figures:
    """One processor process and two behind one Envoy, under the same load and under more than one of them carries."""
    if not bench.chosen("deltafence"):
        return {}
    figures: Figures = {}
    carried_per_s = 0.0
    for processors in PROCESSORS:
        database = bench.folder / f"scaling-{processors}.sqlite"
        for file in bench.folder.glob(f"{database.name}*"):
            file.unlink()
        options = ("--processors", str(processors), "--journal", str(database))
        with deltafence(bench.upstream_port, bench.folder, f"scaling-{processors}", up_options=options) as contender:
            same = bench.run(contender, replace(DELTAS, name=f"scaling, {processors} processors"))
            carried_per_s = carried_per_s or _carried(same)
            more = bench.run(contender, _renewed(f"scaling, {processors} processors", SATURATED_STREAMS, 2 * carried_per_s))
        figures[str(processors)] = {
            "same_load": _per_delta(same) | _under_load(same),
            "more": _per_delta(more) | _under_load(more),
        }
    return figures


def soak(bench: Bench, seconds: float) -> Figures:
    """Half of what one process carries, for so long, in pieces: memory after each of them, and whether it grew."""
    samples: list[Figures] = []
    with deltafence(bench.upstream_port, bench.folder, "soak") as contender:
        half_per_s = _carried_per_s(bench, contender) / 2
        began_s = time.monotonic()
        while (elapsed_s := time.monotonic() - began_s) < seconds:
            window_s = min(SOAK_PIECE_S, max(1.0, seconds - elapsed_s))
            run = bench.run(contender, replace(_renewed("soak", SOAK_STREAMS, half_per_s), window_s=window_s))
            samples.append(
                {"at_s": round(time.monotonic() - began_s), "processor_mib": round(run.processor_rss_mib, 1)} | _under_load(run)
            )
    return {
        "seconds": seconds,
        "offered_per_s": round(half_per_s),
        "samples": samples,
        "growth_mib": growth_mib(samples, seconds),
    }


def growth_mib(samples: list[Figures], seconds: float) -> float | None:
    """The median of the last quarter less that of the second; None where the run was too short to say."""
    quarter = len(samples) // 4
    if seconds < SOAK_JUDGED_S or not quarter:
        return None
    memory_mib = [float(sample["processor_mib"]) for sample in samples]
    return round(statistics.median(memory_mib[-quarter:]) - statistics.median(memory_mib[quarter : 2 * quarter]), 1)


STUDIES: Final[dict[str, Callable[[Bench], Figures]]] = {
    "concurrency": concurrency,
    "memory": memory,
    "saturation": saturation,
    "scaling": scaling,
}


def _held(name: str, streams: int) -> Scenario:
    """So many streams held open, each with a delta a second: memory, not work."""
    return Scenario(
        name=name,
        streams=streams,
        deltas=100_000,
        deltas_per_s=1,
        prefill_ms=20,
        ramp_s=max(1.0, streams / OPENS_PER_S),
        window_s=2,
        keep_alive=False,
    )


def _renewed(name: str, streams: int, deltas_per_s: float) -> Scenario:
    """Streams of 3 s that are asked for again, so that first tokens come all the time."""
    each_per_s = deltas_per_s / streams
    return Scenario(
        name=name,
        streams=streams,
        deltas=max(1, round(3 * each_per_s)),
        deltas_per_s=each_per_s,
        prefill_ms=20,
        ramp_s=3,
        window_s=6,
        keep_alive=True,
    )


def _carried_per_s(bench: Bench, contender: Contender) -> float:
    return _carried(bench.run(contender, replace(DELTAS, name="what one process carries")))


def _carried(run: Measurement) -> float:
    """Deltas a second for which a core is enough, from what one costs."""
    return run.deltas / run.processor_cpu_s


def _per_delta(run: Measurement) -> Figures:
    summary = run.summary()
    keys = ("processor_us_per_delta", "envoy_us_per_delta", "path_us_per_delta", "deltas_per_piece")
    return {key: summary[key] for key in keys}


UNDER_LOAD: Final = (
    "deltas_per_s",
    "deltas_per_piece",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "gap_p99_ms",
    "finished",
    "failures",
    "processor_cores",
    "load_cores",
    "upstream_cores",
)


def _under_load(run: Measurement) -> Figures:
    summary = run.summary()
    return {key: summary[key] for key in UNDER_LOAD}


def _kib_per_stream(points: list[Figures], key: str) -> float:
    """What the last point has beyond the first, for each of its streams."""
    added_mib = float(points[-1][key]) - float(points[0][key])
    return round(added_mib * 1024 / float(points[-1]["streams"]), 1)
