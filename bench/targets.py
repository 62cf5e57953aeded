"""What the figures have to reach (issue 8), and whether they did. A figure that was not measured is neither held nor missed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from bench.scenarios import DELTAS, PEERS, STEADY, STEPS, Scenario

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """``figure`` reads what was reached out of a report's document, None where that is not in it."""

    name: str
    limit: float
    unit: str
    figure: Callable[[Document], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One target and what came of it; ``reached`` None where nothing was measured."""

    target: Target
    reached: float | None

    @property
    def word(self) -> str:
        if self.reached is None:
            return "not measured"
        return "held" if self.reached <= self.target.limit else "missed"


def judge(document: Document) -> list[Judgement]:
    """Every target, in order."""
    return [Judgement(target=target, reached=target.figure(document)) for target in TARGETS]


def figure(document: Document, contender: str, scenario: str, key: str) -> float | None:
    """One figure of the side-by-side runs, None where it was not measured."""
    value = document["contenders"].get(contender, {}).get(scenario, {}).get(key)
    return float(value) if value is not None else None


def ratio(document: Document, contender: str, other: str, scenario: str, key: str) -> float | None:
    """One contender's figure over another's, under the same load."""
    mine, theirs = figure(document, contender, scenario, key), figure(document, other, scenario, key)
    return round(mine / theirs, 3) if mine is not None and theirs else None


def added(document: Document, contender: str, key: str) -> float | None:
    """What one contender's figure under the steady load is above Envoy alone's."""
    mine, theirs = figure(document, contender, STEADY.name, key), figure(document, "envoy", STEADY.name, key)
    return round(mine - theirs, 2) if mine is not None and theirs is not None else None


def _ratio(contender: str, other: str, scenario: str, key: str) -> Callable[[Document], float | None]:
    return lambda document: ratio(document, contender, other, scenario, key)


def _beside_litellm(contender: str, scenario: Scenario) -> Callable[[Document], float | None]:
    return _ratio(contender, "litellm", scenario.name, "path_us_per_delta")


def _added(contender: str, key: str) -> Callable[[Document], float | None]:
    return lambda document: added(document, contender, key)


def _study(*path: str) -> Callable[[Document], float | None]:
    def read(document: Document) -> float | None:
        value: Any = document.get("studies", {})
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return float(value) if value is not None else None

    return read


def _failures(document: Document) -> float | None:
    saturated = document.get("studies", {}).get("saturation", {}).get("twice")
    return None if saturated is None else float(sum(saturated["failures"].values()))


TARGETS: Final = (
    Target(
        name="processor CPU per delta, of the no-op echo's",
        limit=0.75,
        unit="x",
        figure=_ratio("deltafence", "echo", DELTAS.name, "processor_us_per_delta"),
    ),
    Target(
        name="the same with our own HTTP/2",
        limit=0.3,
        unit="x",
        figure=_ratio("deltafence_http2", "echo", DELTAS.name, "processor_us_per_delta"),
    ),
    Target(
        name="whole path's CPU per delta, of LiteLLM's, where a replica's streams advance together",
        limit=0.2,
        unit="x",
        figure=_beside_litellm("deltafence", STEPS),
    ),
    Target(name="the same with our own HTTP/2", limit=0.2, unit="x", figure=_beside_litellm("deltafence_http2", STEPS)),
    Target(
        name="the same where deltas come evenly spread",
        limit=0.2,
        unit="x",
        figure=_beside_litellm("deltafence", PEERS),
    ),
    Target(name="the same with our own HTTP/2", limit=0.2, unit="x", figure=_beside_litellm("deltafence_http2", PEERS)),
    Target(name="added time to first token, median", limit=3, unit="ms", figure=_added("deltafence", "ttft_p50_ms")),
    Target(name="the same with our own HTTP/2", limit=3, unit="ms", figure=_added("deltafence_http2", "ttft_p50_ms")),
    Target(name="added time to first token, p99", limit=15, unit="ms", figure=_added("deltafence", "ttft_p99_ms")),
    Target(name="added gap between tokens, p99", limit=10, unit="ms", figure=_added("deltafence", "gap_p99_ms")),
    Target(
        name="processor memory of one of 2,000 streams",
        limit=40,
        unit="KiB",
        figure=_study("memory", "deltafence", "processor_kib_per_stream"),
    ),
    Target(name="failures at twice the load that one process carries", limit=0, unit="requests", figure=_failures),
    Target(
        name="time to first token there, p99",
        limit=5_000,
        unit="ms",
        figure=_study("saturation", "twice", "ttft_p99_ms"),
    ),
    Target(name="memory's growth over a soak at half load", limit=4, unit="MiB", figure=_study("soak", "growth_mib")),
)
"""The bound on saturation's first token is ours: above it a person has gone. The soak's leaves room for the allocator's moods."""
