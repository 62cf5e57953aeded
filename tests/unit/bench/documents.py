"""A report as a run on a small machine writes it, in round numbers."""

from typing import Any

from bench import report
from bench.run import Measurement
from bench.scenarios import SCENARIOS
from bench.studies import SOAK_JUDGED_S, UNDER_LOAD, growth_mib


def summary(processor_us: float, envoy_us: float = 0, ttft_ms: float = 20) -> dict[str, Any]:
    run = Measurement(
        deltas=1_000,
        pieces=1_000,
        wall_s=1,
        processor_cpu_s=processor_us / 1_000,
        envoy_cpu_s=envoy_us / 1_000,
        finished=10,
        ttft_ms=[ttft_ms] * 10,
        gaps_ms=[50.0] * 10,
    )
    return run.summary()


def everything() -> dict[str, Any]:
    """Every contender under every load, and every study."""
    loads = {
        "deltafence": summary(70, 80, ttft_ms=22),
        "deltafence_http2": summary(25, 80),
        "echo": summary(100, 60),
        "envoy": summary(0, 40),
        "litellm": summary(1_000),
    }
    contenders = {name: {scenario.name: dict(run) for scenario in SCENARIOS} for name, run in loads.items()}
    load = {"offered_per_s": 9_000} | {key: loads["deltafence"][key] for key in UNDER_LOAD}
    samples = [{"at_s": 30 * number, "processor_mib": 90.0} | load for number in range(1, 41)]
    points = [
        {"streams": streams, "processor_mib": 80 + streams * 32 / 1024, "envoy_mib": 50.0, "failed": 0} for streams in (0, 2000)
    ]
    studies = {
        "concurrency": {
            name: [{"streams": streams} | run for streams in (25, 400)] for name, run in loads.items() if name != "litellm"
        },
        "memory": {"deltafence": {"points": points, "processor_kib_per_stream": 32.0, "envoy_kib_per_stream": 0.0}},
        "saturation": {"carried_per_s": 9_000, "half": load, "twice": load},
        "scaling": {str(number): {"same_load": loads["deltafence"], "more": loads["deltafence"]} for number in (1, 2)},
        "soak": {
            "seconds": SOAK_JUDGED_S,
            "offered_per_s": 4_500,
            "samples": samples,
            "growth_mib": growth_mib(samples, SOAK_JUDGED_S),
        },
    }
    return report.report(contenders, studies, rounds=2, load_average=0.1)
