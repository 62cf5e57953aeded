"""``python -m bench.health``: what one reading of vLLM's whole page costs, and one judgement of it.

The page is a recorded one of about 50 KB and 596 lines. With ``prometheus_client`` installed its parser is timed beside ours.
Exit status 1 where a reading costs 2 ms or more.
"""

import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path

from extproc.decision.exposition import read_page
from extproc.decision.findings import History
from extproc.decision.health import judge
from extproc.decision.looks import Look, read_answer
from extproc.decision.verdicts import HealthSettings

PAGE = Path(__file__).parent.parent / "tests" / "data" / "metrics" / "busy_1.txt"
LIMIT_MS = 2.0
ROUNDS = 300


def fastest_ms(run: Callable[[], object]) -> float:
    """The fastest of many runs, which is the one that nothing else on the machine disturbed."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        run()
        best = min(best, time.perf_counter_ns() - began)
    return best / 1e6


def main() -> int:
    body = PAGE.read_bytes()
    settings = HealthSettings()
    history, _ = judge(History.begin(0), read_answer(Look.METRICS, 200, body, 1), settings, 0)
    observation = read_answer(Look.METRICS, 200, body, 1)

    reading_ms = fastest_ms(lambda: read_page(body))
    print(f"one page, {len(body) / 1024:.0f} KiB, {len(body.splitlines())} lines")
    print(f"  read            {reading_ms:8.3f} ms   (limit {LIMIT_MS} ms)")
    print(f"  judge           {fastest_ms(lambda: judge(history, observation, settings, 5_000)):8.3f} ms")
    if importlib.util.find_spec("prometheus_client") is not None:
        from prometheus_client.parser import text_string_to_metric_families  # type: ignore[import-not-found]

        text = body.decode()
        print(f"  prometheus_client {fastest_ms(lambda: list(text_string_to_metric_families(text))):6.3f} ms")
    return 0 if reading_ms < LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
