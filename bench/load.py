"""The load generator: counts events and takes their times, and does nothing else per delta.

``python -m bench.load '{"port": N, "scenario": {...}}'`` prints three JSON lines: ``{"mark": "start", "deltas": n,
"pieces": n}`` and the same with ``end`` at the edges of what counts, for the caller to read other processes' CPU time at, then
the result (``Result``).
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import cast

import httptools
import uvloop

from bench.scenarios import Scenario
from bench.upstream import EVENTS_BESIDE_DELTAS

ANSWER_DEADLINE_S = 60
"""For runs without a window, on top of what the answer itself takes: whatever is not finished by then has failed."""


@dataclass(slots=True)
class Result:
    """What the clients saw. Times in milliseconds; only of requests that were sent in the window."""

    ttft_ms: list[float] = field(default_factory=list)
    gaps_ms: list[float] = field(default_factory=list)
    deltas: int = 0
    pieces: int = 0
    """Arrivals with deltas in them: fewer than deltas where something on the way has merged them."""
    finished: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    cpu_s: float = 0

    def fail(self, reason: str) -> None:
        self.failures[reason] = self.failures.get(reason, 0) + 1


class Client(asyncio.Protocol):
    """One connection with one request under way at a time; ``done`` tells how it ended, empty for well."""

    def __init__(self, result: Result, deltas: int) -> None:
        self.result = result
        self.deltas = deltas
        self.expected_events = deltas + EVENTS_BESIDE_DELTAS
        self.done: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its class

    def send(self, request: bytes) -> asyncio.Future[str]:
        self.parser = httptools.HttpResponseParser(self)
        self.done = asyncio.get_running_loop().create_future()
        self.events = 0
        self.half_end = b""
        self.last_s: float | None = None
        self.sent_s = time.perf_counter()
        self.transport.write(request)
        return self.done

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """Counts blank lines; one may be cut in two by a chunk's border."""
        before = self.events
        body = self.half_end + body
        self.events += body.count(b"\n\n")
        self.half_end = b"\n" if body.endswith(b"\n") and not body.endswith(b"\n\n") else b""
        # The first event is the role chunk, the second the first delta.
        if self.events == before or self.events < 2:
            return
        now_s = time.perf_counter()
        self.result.deltas += self.delivered(self.events) - self.delivered(before)
        self.result.pieces += 1
        if self.last_s is None:
            self.result.ttft_ms.append((now_s - self.sent_s) * 1000)
        else:
            self.result.gaps_ms.append((now_s - self.last_s) * 1000)
        self.last_s = now_s

    def delivered(self, events: int) -> int:
        """How many of the first ``events`` events are deltas: the role chunk comes before them, finish and [DONE] after."""
        return min(max(events - 1, 0), self.deltas)

    def on_message_complete(self) -> None:
        status = self.parser.get_status_code()
        if status != 200:
            self.end(f"status {status}")
        elif self.events != self.expected_events:
            self.end(f"{self.events} events instead of {self.expected_events}")
        else:
            self.end("")

    def connection_lost(self, error: Exception | None) -> None:
        self.end(f"connection lost ({error})")

    def end(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_result(reason)


class Load:
    """One scenario against one port."""

    def __init__(self, port: int, scenario: Scenario) -> None:
        self.port = port
        self.scenario = scenario
        self.result = Result()
        body = json.dumps(
            {
                "model": "bench",
                "messages": [{"role": "user", "content": "How much is the fence? " * 8}],
                "stream": True,
                "max_tokens": scenario.deltas,
                "bench_deltas_per_s": scenario.deltas_per_s,
                "bench_prefill_ms": scenario.prefill_ms,
                "bench_pace": scenario.pace,
            }
        ).encode()
        self.request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )

    async def run(self) -> Result:
        slots = [asyncio.create_task(self.slot(index)) for index in range(self.scenario.streams)]
        await asyncio.sleep(self.scenario.ramp_s)
        # What happened in the ramp does not count, but its failures do.
        self.result.ttft_ms.clear()
        self.result.gaps_ms.clear()
        cpu_s = time.process_time()
        self.mark("start")
        if self.scenario.window_s is None:
            answer_s = self.scenario.prefill_ms / 1000 + self.scenario.deltas / self.scenario.deltas_per_s
            await asyncio.wait(slots, timeout=answer_s + ANSWER_DEADLINE_S)
        else:
            await asyncio.sleep(self.scenario.window_s)
        self.mark("end")
        self.result.cpu_s = time.process_time() - cpu_s
        for slot in slots:
            if self.scenario.window_s is None and not slot.done():
                self.result.fail("not finished in time")
            elif slot.done():
                slot.result()
            slot.cancel()
        return self.result

    async def slot(self, index: int) -> None:
        await asyncio.sleep(self.scenario.ramp_s * index / self.scenario.streams)
        client: Client | None = None
        while True:
            if client is None or client.transport.is_closing():
                client = await self.connect()
            reason = "refused" if client is None else await client.send(self.request)
            if reason:
                self.result.fail(reason)
            else:
                self.result.finished += 1
            if client is not None and (reason or not self.scenario.keep_alive):
                client.transport.abort()
                client = None
            if self.scenario.window_s is None:
                return

    async def connect(self) -> Client | None:
        try:
            _, client = await asyncio.get_running_loop().create_connection(
                lambda: Client(self.result, self.scenario.deltas), "127.0.0.1", self.port
            )
        except OSError:
            await asyncio.sleep(0.1)  # a contender that is gone may not turn this into a busy loop
            return None
        return client

    def mark(self, name: str) -> None:
        print_json({"mark": name, "deltas": self.result.deltas, "pieces": self.result.pieces})


def print_json(document: dict[str, object]) -> None:
    """One line on stdout, whole: under PYTHONUNBUFFERED, ``print`` loses what the first write to a full pipe leaves over."""
    with open(sys.stdout.fileno(), "w", closefd=False) as stdout:
        stdout.write(json.dumps(document) + "\n")


def main() -> None:
    arguments = json.loads(sys.argv[1])
    result = uvloop.run(Load(arguments["port"], Scenario(**arguments["scenario"])).run())
    print_json(asdict(result))


if __name__ == "__main__":
    main()
