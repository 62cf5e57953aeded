"""The Prometheus text of /metrics, with the series of vLLM 0.32 that a health check can read (FACTS A)."""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from extproc.sim.engine import BLOCK_TOKENS, Engine, EngineReadings
from extproc.sim.settings import Settings

CONTENT_TYPE: Final = "text/plain; version=1.0.0; charset=utf-8"
FINISHED_REASONS: Final = ("stop", "length", "abort", "error", "repetition")
STARTED_AT: Final = time.time()

_Samples = Iterable[tuple[dict[str, str], float]]


def exposition(settings: Settings, engines: Sequence[Engine], *, with_engines: bool = True, with_process: bool = True) -> str:
    """All series as text; the two switches leave out what some servers don't have (CASES HL-06, HL-07)."""
    lines: list[str] = []
    if with_process:
        lines += _series("process_start_time_seconds", "gauge", [({}, STARTED_AT)])
        lines += _series("process_open_fds", "gauge", [({}, len(os.listdir("/proc/self/fd")))])
    if with_engines:
        readings = [({"engine": engine.label, "model_name": settings.model}, engine.readings()) for engine in engines]
        for name, kind, samples in _engine_series(settings, readings):
            lines += _series(name, kind, samples)
    return "\n".join(lines) + "\n"


def _engine_series(
    settings: Settings, engines: list[tuple[dict[str, str], EngineReadings]]
) -> Iterator[tuple[str, str, _Samples]]:
    def each(value: str) -> _Samples:
        return [(labels, getattr(readings, value)) for labels, readings in engines]

    yield "vllm:num_requests_running", "gauge", each("running")
    yield "vllm:num_requests_waiting", "gauge", each("waiting")
    yield (
        "vllm:num_requests_waiting_by_reason",
        "gauge",
        [
            (labels | {"reason": reason}, readings.waiting if reason == "capacity" else 0)
            for labels, readings in engines
            for reason in ("capacity", "deferred")
        ],
    )
    yield "vllm:kv_cache_usage_perc", "gauge", each("kv_cache_usage")
    yield "vllm:num_preemptions_total", "counter", [(labels, 0) for labels, _ in engines]
    yield "vllm:prompt_tokens_total", "counter", each("prompt_tokens")
    yield "vllm:generation_tokens_total", "counter", each("generation_tokens")
    yield "vllm:iteration_tokens_total_count", "histogram", each("steps")
    yield "vllm:iteration_tokens_total_sum", "histogram", each("step_tokens")
    yield (
        "vllm:request_success_total",
        "counter",
        [
            (labels | {"finished_reason": reason}, readings.finished[reason])  # type: ignore[index]  # a StrEnum's values
            for labels, readings in engines
            for reason in FINISHED_REASONS
        ],
    )
    yield (
        "vllm:engine_sleep_state",
        "gauge",
        [(labels | {"sleep_state": state}, int(state == "awake")) for labels, _ in engines for state in ("awake", "discard_all")],
    )
    config = {
        "block_size": str(BLOCK_TOKENS),
        "cache_dtype": "auto",
        "enable_prefix_caching": "True",
        "num_gpu_blocks": str(settings.blocks),
    }
    yield "vllm:cache_config_info", "gauge", [(config | {"engine": labels["engine"]}, 1) for labels, _ in engines]


def _series(name: str, kind: str, samples: _Samples) -> Iterator[str]:
    family = name
    if kind == "histogram":
        family = name.rsplit("_", 1)[0]
    if not name.endswith("_sum"):
        yield f"# HELP {family} {family.replace('_', ' ')}."
        yield f"# TYPE {family} {kind}"
    for labels, value in samples:
        braces = "{" + ",".join(f'{label}="{text}"' for label, text in labels.items()) + "}" if labels else ""
        yield f"{name}{braces} {float(value)}"
