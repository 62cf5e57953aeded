"""What the write-ahead rule costs: the time of ``commit(first_delta_sent)``, seen by the event loop that waits for it.

    python bench/journal.py [sqlite:PATH | postgresql://...]       (default: a temporary SQLite file)

Rows: one stream at a time; many that cross their boundaries at once; many beside an event loop that is busy with other streams'
deltas, as a loaded processor is. Every request writes what a real one writes: admitted, attempt_started, first_delta_sent, ended.

Everything is measured ``PASSES`` times, since whatever else the machine does shows. Columns: the median of the passes' medians,
the best and the worst pass's median, the median of the passes' 99th percentiles.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from extproc.journal.durable import DurableJournal
from extproc.journal.records import EventKind, JournalEvent
from extproc.storage.opening import open_database
from extproc.storage.owner import Owner

MEDIAN_MS_MAX = 2.0
"""Issue 5's bound, at the median, on the first delta; later deltas never touch the journal."""
BUSY_SHARE = 0.7
"""Of the loop's time, taken by other streams' deltas in slices of ``SLICE_S`` (a delta costs about 0.1 ms, FACTS C14)."""
SLICE_S = 0.0001
PASSES = 7
RUN = time.time_ns()
"""Makes this run's request ids its own on a database that is used again."""


async def live(journal: DurableJournal, request_id: str) -> float:
    """One request's life; the milliseconds that its boundary took."""

    def event(kind: EventKind, **detail: str | int | float | bool | None) -> JournalEvent:
        return JournalEvent(
            request_id=request_id, kind=kind, at_ms=int(time.time() * 1000), attempt_id=f"att_{request_id}", detail=detail
        )

    journal.append(event(EventKind.ADMITTED, api="chat", model="model", route="chat", stream=True))
    journal.append(event(EventKind.ATTEMPT_STARTED, number=1, retry_budget=10.0, model_revision="main"))
    await journal.flush()  # as prefill takes longer than events linger, they are stored when the first delta comes
    started = time.perf_counter()
    await journal.commit(event(EventKind.FIRST_DELTA_SENT))
    elapsed_ms = (time.perf_counter() - started) * 1000
    journal.append(event(EventKind.ENDED, outcome="completed", reason="finished", delivered_output_tokens=100))
    return elapsed_ms


async def measure(journal: DurableJournal, name: str, streams: int, rounds: int) -> list[float]:
    """``rounds`` times ``streams`` requests at once."""
    times: list[float] = []
    for number in range(rounds):
        times += await asyncio.gather(*(live(journal, f"req_{RUN}_{name}_{number}_{stream}") for stream in range(streams)))
    return times


async def be_busy() -> None:
    """Other streams' deltas: short slices of work with room for the loop between them."""
    while True:
        until = time.perf_counter() + SLICE_S
        while time.perf_counter() < until:
            pass
        await asyncio.sleep(0 if BUSY_SHARE >= 1 else SLICE_S * (1 - BUSY_SHARE) / BUSY_SHARE)


@contextmanager
def busy_loop() -> Iterator[None]:
    task = asyncio.get_running_loop().create_task(be_busy())
    try:
        yield
    finally:
        task.cancel()


async def run_pass(journal: DurableJournal, number: int) -> dict[str, list[float]]:
    """Every row once: name to the milliseconds of each boundary."""
    rows = {
        "one stream at a time": await measure(journal, f"single{number}", 1, 500),
        "50 streams at once": await measure(journal, f"fifty{number}", 50, 20),
    }
    with busy_loop():
        rows[f"one stream, loop {BUSY_SHARE:.0%} busy"] = await measure(journal, f"busy1_{number}", 1, 250)
        rows[f"20 streams, loop {BUSY_SHARE:.0%} busy"] = await measure(journal, f"busy20_{number}", 20, 20)
    return rows


async def run(url: str) -> bool:
    database = await open_database(url)
    owner = Owner(database, f"proc_bench_{RUN}")
    await owner.announce()
    journal = DurableJournal(database, owner)
    await measure(journal, "warm", 10, 20)
    loads, passes = [], []
    for number in range(PASSES):
        loads.append(os.getloadavg()[0])
        passes.append(await run_pass(journal, number))
    await journal.close()
    await database.close()
    print(f"{PASSES} passes on {os.cpu_count()} cores, load average {min(loads):.1f} to {max(loads):.1f}")
    print(f"{'commit(first_delta_sent), ms':32} {'p50':>7} {'best':>7} {'worst':>7} {'p99':>7}")
    within = True
    for name in passes[0]:
        medians = sorted(statistics.median(rows[name]) for rows in passes)
        p99 = statistics.median(statistics.quantiles(rows[name], n=100)[98] for rows in passes)
        median = statistics.median(medians)
        print(f"{name:32} {median:7.2f} {medians[0]:7.2f} {medians[-1]:7.2f} {p99:7.2f}")
        within = within and median <= MEDIAN_MS_MAX
    return within


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        within = asyncio.run(run(arguments.url or f"sqlite:{folder}/journal.db"))
    print("within" if within else "OVER", f"the bound of {MEDIAN_MS_MAX} ms at the median")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
