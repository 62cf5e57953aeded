"""A replica stand-in that costs almost nothing: one asyncio.Protocol, every byte of an answer prepared beforehand.

``python -m bench.upstream`` prints ``{"port": N}`` and serves until it is stopped. POST /v1/chat/completions streams as vLLM
does: the 200 at once, the role chunk together with the first delta after the prefill, a finish, ``[DONE]``. The request's
body says how: ``max_tokens`` deltas, ``bench_deltas_per_s``, ``bench_prefill_ms``, and ``bench_pace`` (scenarios.Pace).
"""

import asyncio
import json
import time
from typing import Any, Final, cast

import httptools
import uvloop

from bench.scenarios import Pace


def _event(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason, "token_ids": None}
    chunk = {
        "id": "chatcmpl-0123456789abcdef0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": 1760000000,
        "model": "bench",
        "choices": [choice],
    }
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


def _http_chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


def _plain(content_type: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
ROLE: Final = _http_chunk(_event({"role": "assistant", "content": ""}))
DELTA: Final = _http_chunk(_event({"content": " fence"}))
OTHER_DELTA: Final = _http_chunk(_event({"content": " gates"}))
"""In turns with the first: LiteLLM breaks off a stream that says the same a hundred times."""
END: Final = _http_chunk(_event({"content": ""}, "stop")) + _http_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
EVENTS_BESIDE_DELTAS: Final = 3
"""The role chunk, the finish and ``[DONE]``."""
GOLDEN_RATIO: Final = (5**0.5 - 1) / 2
"""Its multiples fill an interval evenly, however many there are."""
NOT_FOUND: Final = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
"""Among others to a heartbeat: there is no guard here, and a replica says so as vLLM does."""
MODELS: Final = _plain("application/json", b'{"object":"list","data":[{"id":"bench","object":"model","owned_by":"bench"}]}')


class Replica:
    """What all connections share: the counters behind /metrics."""

    def __init__(self) -> None:
        self.started_s = time.time()
        self.streams = 0
        self.running = 0
        self.deltas = 0

    def first_due_s(self, pace: Pace, earliest_s: float, interval_s: float) -> float:
        """When the first delta of a new stream is due. Left to themselves, streams make other bunches in each run, and what comes
        in a bunch costs less: figures of CPU are taken where the pace is the same for all."""
        self.streams += 1
        match pace:
            case Pace.OWN:
                return earliest_s
            case Pace.SPREAD:
                turn_s = self.streams * GOLDEN_RATIO % 1 * interval_s
            case Pace.STEPS:
                turn_s = 0.0
        return earliest_s + (turn_s - earliest_s) % interval_s

    def metrics(self) -> bytes:
        labels = '{engine="0",model_name="bench"}'
        lines = [
            f"vllm:num_requests_running{labels} {self.running}",
            f"vllm:num_requests_waiting{labels} 0",
            f"vllm:iteration_tokens_total_count{labels} {self.deltas}",
            f"vllm:generation_tokens_total{labels} {self.deltas}",
            f"process_start_time_seconds {self.started_s}",
        ]
        return _plain("text/plain; version=0.0.4", "\n".join([*lines, ""]).encode())


class Connection(asyncio.Protocol):
    """One keep-alive connection, one answer at a time."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.parser = httptools.HttpRequestParser(self)
        self.url = b""
        self.body = b""
        self.remaining = 0
        self.interval_s = 0.0
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its class

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.replica.running -= 1

    def on_message_begin(self) -> None:
        self.url = self.body = b""

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        if self.url == b"/metrics":
            self.transport.write(self.replica.metrics())
        elif self.url in (b"/v1/models", b"/health"):
            self.transport.write(MODELS)
        elif self.url.startswith(b"/v1/"):
            self.start(json.loads(self.body))
        else:
            self.transport.write(NOT_FOUND)

    def start(self, request: dict[str, Any]) -> None:
        self.replica.running += 1
        self.remaining = int(request["max_tokens"])
        self.interval_s = 1 / request["bench_deltas_per_s"]
        self.transport.write(HEAD)
        loop = asyncio.get_running_loop()
        earliest_s = loop.time() + float(request["bench_prefill_ms"]) / 1000
        self.due_s = self.replica.first_due_s(Pace(request["bench_pace"]), earliest_s, self.interval_s)
        self.timer = loop.call_at(self.due_s, self.step, loop, ROLE + DELTA)

    def step(self, loop: asyncio.AbstractEventLoop, data: bytes) -> None:
        self.transport.write(data)
        self.replica.deltas += 1
        self.remaining -= 1
        if self.remaining > 0:
            # Counted from the due time, not from now: a late step may not slow the stream down.
            self.due_s += self.interval_s
            self.timer = loop.call_at(self.due_s, self.step, loop, OTHER_DELTA if self.remaining & 1 else DELTA)
        else:
            self.timer = None
            self.replica.running -= 1
            self.transport.write(END)


async def serve() -> None:
    replica = Replica()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(replica), "127.0.0.1", 0, backlog=4096)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve())
