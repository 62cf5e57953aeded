"""Puts every contender under every load, in turns, and sums up what was seen."""

import json
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench import measure
from bench.contender import Contender
from bench.processes import read_json, running_module
from bench.scenarios import Scenario


@dataclass(slots=True, kw_only=True)
class Measurement:
    """One contender under one load, all rounds together; CPU and deltas belong to the same stretch of time."""

    deltas: int = 0
    pieces: int = 0
    wall_s: float = 0
    processor_cpu_s: float = 0
    envoy_cpu_s: float = 0
    load_cpu_s: float = 0
    upstream_cpu_s: float = 0
    processor_rss_mib: float = 0
    envoy_rss_mib: float = 0
    finished: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    ttft_ms: list[float] = field(default_factory=list)
    gaps_ms: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, object]:
        """The figures that the report and the JSON file give."""
        return {
            "processor_us_per_delta": _per_delta_us(self.processor_cpu_s, self.deltas),
            "envoy_us_per_delta": _per_delta_us(self.envoy_cpu_s, self.deltas),
            "path_us_per_delta": _per_delta_us(self.processor_cpu_s + self.envoy_cpu_s, self.deltas),
            "deltas_per_piece": round(self.deltas / self.pieces, 2) if self.pieces else None,
            "deltas_per_s": round(self.deltas / self.wall_s),
            "processor_cores": round(self.processor_cpu_s / self.wall_s, 2),
            "ttft_p50_ms": percentile(self.ttft_ms, 0.50),
            "ttft_p99_ms": percentile(self.ttft_ms, 0.99),
            "ttft_percentiles_ms": [percentile(self.ttft_ms, share / 100) for share in range(101)] if self.ttft_ms else [],
            "gap_p50_ms": percentile(self.gaps_ms, 0.50),
            "gap_p99_ms": percentile(self.gaps_ms, 0.99),
            "finished": self.finished,
            "failures": dict(self.failures),
            "processor_rss_mib": round(self.processor_rss_mib, 1) or None,
            "envoy_rss_mib": round(self.envoy_rss_mib, 1) or None,
            # Near one core these two, not the contender, are what the run has measured.
            "load_cores": round(self.load_cpu_s / self.wall_s, 2),
            "upstream_cores": round(self.upstream_cpu_s / self.wall_s, 2),
        }


def percentile(values: list[float], share: float) -> float | None:
    """The smallest value that ``share`` of all do not exceed, to a hundredth; None of nothing."""
    if not values:
        return None
    return round(sorted(values)[min(len(values) - 1, int(share * len(values)))], 2)


def run_round(contender: Contender, scenario: Scenario, upstream_pid: int, folder: Path, measurement: Measurement) -> None:
    """Adds one run of ``scenario`` to ``measurement``."""
    arguments = json.dumps({"port": contender.port, "scenario": asdict(scenario)})
    log = folder / "load.log"
    with running_module("bench.load", arguments, log=log) as load:
        start, before = read_json(load, log), _cpu(contender, upstream_pid)
        _read_memory(contender, measurement)
        end, after = read_json(load, log), _cpu(contender, upstream_pid)
        _read_memory(contender, measurement)
        result = read_json(load, log)
    measurement.deltas += end["deltas"] - start["deltas"]
    measurement.pieces += end["pieces"] - start["pieces"]
    measurement.wall_s += after.at_s - before.at_s
    measurement.processor_cpu_s += after.processor_s - before.processor_s
    measurement.envoy_cpu_s += after.envoy_s - before.envoy_s
    measurement.upstream_cpu_s += after.upstream_s - before.upstream_s
    measurement.load_cpu_s += result["cpu_s"]
    measurement.finished += result["finished"]
    measurement.failures.update(result["failures"])
    measurement.ttft_ms += result["ttft_ms"]
    measurement.gaps_ms += result["gaps_ms"]


def _read_memory(contender: Contender, measurement: Measurement) -> None:
    measurement.processor_rss_mib = max(measurement.processor_rss_mib, measure.rss_mib(contender.processor_pids))
    measurement.envoy_rss_mib = max(measurement.envoy_rss_mib, measure.rss_mib(contender.envoy_pids))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cpu:
    at_s: float
    processor_s: float
    envoy_s: float
    upstream_s: float


def _cpu(contender: Contender, upstream_pid: int) -> _Cpu:
    return _Cpu(
        at_s=time.monotonic(),
        processor_s=measure.cpu_s(contender.processor_pids),
        envoy_s=measure.cpu_s(contender.envoy_pids),
        upstream_s=measure.cpu_s([upstream_pid]),
    )


def _per_delta_us(cpu_s: float, deltas: int) -> float | None:
    """None where a contender has no such process."""
    return round(cpu_s / deltas * 1e6, 1) if cpu_s and deltas else None
