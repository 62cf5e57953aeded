"""The few series of vLLM's ``/metrics`` page that health needs, read from the Prometheus text format.

A page has hundreds of series, most of them histogram buckets; one pass of a regular expression picks out the dozen that count
(R21, R22). A series that is not there, or is not a finite number, stays absent: it is never 0.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
Series: vllm/v1/metrics/loggers.py of vLLM 0.32 (FACTS A).
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class Series(StrEnum):
    """What is read for each engine, by the name that vLLM 0.32 gives it, without the prefix."""

    RUNNING = "num_requests_running"
    WAITING = "num_requests_waiting"
    STEPS = "iteration_tokens_total_count"
    STEP_TOKENS = "iteration_tokens_total_sum"
    GENERATED_TOKENS = "generation_tokens_total"
    PROMPT_TOKENS = "prompt_tokens_total"
    FINISHED_REQUESTS = "request_success_total"
    PREEMPTIONS = "num_preemptions_total"
    PREFIX_CACHE_QUERIES = "prefix_cache_queries_total"
    ESTIMATED_FLOPS = "estimated_flops_per_gpu_total"
    """Only with ``--enable-mfu-metrics``; moves with every step, whatever the attention's window."""
    KV_CACHE_USE = "kv_cache_usage_perc"
    AWAKE = "engine_sleep_state"
    """1 while awake; the page has one sample per ``sleep_state``, of which ``awake`` is read."""


GAUGES: Final = frozenset({Series.RUNNING, Series.WAITING, Series.KV_CACHE_USE, Series.AWAKE})
COUNTERS: Final = frozenset(Series) - GAUGES
"""May only grow within one process: a counter that went back tells of another process."""
LOAD: Final = (Series.RUNNING, Series.WAITING)
"""Without these nothing can be said about an engine's load."""
PROOF: Final = (Series.STEPS, Series.KV_CACHE_USE)
"""Without these standing still proves nothing: steps move in decode, KV use in a lone chunked prefill (FACTS A)."""

_OTHER_SPELLINGS: Final = {
    "gpu_cache_usage_perc": Series.KV_CACHE_USE,
    "gpu_prefix_cache_queries_total": Series.PREFIX_CACHE_QUERIES,
    "gpu_prefix_cache_queries": Series.PREFIX_CACHE_QUERIES,
}
_SPELLINGS: Final[dict[bytes, Series]] = {
    spelling.encode(): series
    for spellings in (
        {str(series): series for series in Series},
        {series.removesuffix("_total"): series for series in Series},
        _OTHER_SPELLINGS,
    )
    for spelling, series in spellings.items()
}

# Labels are bounded on every side by what a line may hold, so that a hostile page costs one pass and no backtracking. Both
# patterns begin with a literal, which the engine searches for eight times faster than for an anchor.
_LABELS: Final = rb'(?:\{((?:[^"}\n]|"(?:[^"\\\n]|\\.)*+")*+)\})?[ \t]+([^\s]+)'
_SAMPLE: Final = re.compile(rb"\nvllm[:_](%s)" % b"|".join(sorted(_SPELLINGS, reverse=True)) + _LABELS)
_START: Final = re.compile(rb"\nprocess_start_time_seconds" + _LABELS)
_LABEL: Final = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*+)"')
_ESCAPE: Final = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReading:
    """One engine's series at one moment; ``engine`` is its label, empty where the page has none."""

    engine: str
    model: str
    values: Mapping[Series, float]

    @property
    def in_flight(self) -> float:
        """Requests that run or wait. Only for a reading that has both series."""
        return self.values[Series.RUNNING] + self.values[Series.WAITING]

    def missing(self, wanted: tuple[Series, ...]) -> tuple[Series, ...]:
        """Those of the wanted series that the page did not have for this engine."""
        return tuple(series for series in wanted if series not in self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One reading of ``/metrics``: every engine in the order of the page.

    ``started_at_s`` is the process's start in Unix seconds, or None where the page has none or several (HL-06).
    """

    started_at_s: float | None
    engines: tuple[EngineReading, ...]

    @property
    def missing(self) -> tuple[Series, ...]:
        """The series without which nothing can be said about the load."""
        if not self.engines:
            return LOAD
        return tuple(dict.fromkeys(series for engine in self.engines for series in engine.missing(LOAD)))

    @property
    def in_flight(self) -> float:
        """Requests that run or wait on any engine. Only for a page that has those series."""
        return sum(engine.in_flight for engine in self.engines)

    @property
    def model(self) -> str:
        """The served model's name, empty where the page does not tell."""
        return next((engine.model for engine in self.engines if engine.model), "")


@dataclass(slots=True)
class _Sums:
    """Samples of one engine; those that differ only in further labels are added up."""

    model: str
    values: dict[Series, float] = field(default_factory=dict)


def read_page(body: bytes) -> Page:
    """Read a page in the text format; a body in any other form is a page without engines. Raises nothing."""
    text = b"\n" + body
    engines: dict[tuple[str, str], _Sums] = {}
    for name, labels_text, value_text in _SAMPLE.findall(text):
        value = _read_number(value_text)
        if value is None:
            continue
        series = _SPELLINGS[name]
        labels: dict[bytes, bytes] = dict(_LABEL.findall(labels_text))
        if series is Series.AWAKE and labels.get(b"sleep_state") != b"awake":
            continue
        engine, model = _read_label(labels.get(b"engine")), _read_label(labels.get(b"model_name"))
        sums = engines.setdefault((engine, model), _Sums(model)).values
        sums[series] = sums.get(series, 0.0) + value
    starts = {_read_number(value_text) for _, value_text in _START.findall(text)} - {None}
    return Page(
        started_at_s=starts.pop() if len(starts) == 1 else None,
        engines=tuple(EngineReading(engine=engine, model=model, values=sums.values) for (engine, model), sums in engines.items()),
    )


def _read_number(text: bytes) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _read_label(text: bytes | None) -> str:
    if text is None:
        return ""
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], text.decode("utf-8", "replace"))
