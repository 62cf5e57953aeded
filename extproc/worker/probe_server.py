"""The probe's pages: ``/livez``, ``/readyz``, ``/verdict``, over the standard library's streams.

The kubelet restarts the model server when it gets no answer here, so answering comes first: every page is a function of what is
already known, a connection has seconds to state its request, and when there are too many the one that has waited longest goes.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from extproc.decision.health_report import encode_history, encode_record
from extproc.worker.watch import Watch

HEAD_BYTES_MAX: Final = 8_192
REQUEST_TIMEOUT_S: Final = 10.0
"""Long enough for a starved node; what silent clients can hold is bounded by their number."""
CONNECTIONS_MAX: Final = 64
REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}

Page = Callable[[Watch], tuple[int, dict[str, object]]]


def livez(watch: Watch) -> tuple[int, dict[str, object]]:
    """503 only for what is proved hung or dead, within the limit."""
    liveness = watch.answer_liveness()
    return (200 if liveness.is_alive else 503), {"alive": liveness.is_alive, "reason": liveness.reason}


def readyz(watch: Watch) -> tuple[int, dict[str, object]]:
    """503 where new work should go elsewhere."""
    judgement = watch.judgement
    ready = judgement.is_placeable
    return (200 if ready else 503), {"ready": ready, "verdict": str(judgement.verdict), "reason": judgement.evidence}


def verdict(watch: Watch) -> tuple[int, dict[str, object]]:
    """Always 200: everything that is known, and asks for nothing."""
    now, liveness = watch.clock(), watch.peek_liveness()
    restarts = {"asked_for": encode_record(watch.record, now), "within_hour": watch.record.within_hour(now)}
    return 200, encode_history(watch.history, now) | {
        "livez": {"alive": liveness.is_alive, "reason": liveness.reason},
        "restarts": restarts,
    }


PAGES: Final[Mapping[str, Page]] = {"/livez": livez, "/readyz": readyz, "/verdict": verdict}


class ProbeServer:
    """Serves the pages of one watch.

    Invariant: ``_stating`` holds the connections that have not stated their request yet, the longest-waiting first.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._stating: dict[asyncio.StreamWriter, None] = {}
        self._serving: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self, host: str | None, port: int) -> AsyncIterator[list[str]]:
        """Serve for the length of the block, which gets the addresses; host None is every interface. Raises OSError."""
        server = await asyncio.start_server(self._serve, host, port, limit=HEAD_BYTES_MAX)
        try:
            yield [":".join(map(str, socket.getsockname()[:2])) for socket in server.sockets]
        finally:
            server.close()
            while self._serving:
                for writer in self._stating:
                    writer.transport.abort()
                await asyncio.wait(set(self._serving))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.current_task()
        assert serving is not None
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)
        self._stating[writer] = None
        if len(self._stating) > CONNECTIONS_MAX:
            oldest = next(iter(self._stating))
            del self._stating[oldest]
            oldest.transport.abort()
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                self._stating.pop(writer, None)
                writer.write(self._answer(head))
                await writer.drain()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            writer.transport.abort()
        except asyncio.LimitOverrunError:
            writer.write(_encode(400, {"error": f"a request head of more than {HEAD_BYTES_MAX} bytes"}))
            writer.close()
        finally:
            self._stating.pop(writer, None)

    def _answer(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _encode(400, {"error": "not an HTTP/1.1 request"})
        method, path = words[0], words[1].partition(b"?")[0].decode("latin-1")
        page = PAGES.get(path)
        if page is None:
            return _encode(404, {"error": f"no such page; there are {', '.join(PAGES)}"})
        if method not in (b"GET", b"HEAD"):
            return _encode(405, {"error": "GET only"})
        try:
            status, document = page(self._watch)
        except Exception as error:
            # A fault of ours is no reason to restart the model.
            status, document = (200 if page is livez else 500), {"error": f"the probe's own fault: {error!r}"}
        return _encode(status, document, with_body=method == b"GET")


def _encode(status: int, document: dict[str, object], *, with_body: bool = True) -> bytes:
    body = json.dumps(document).encode() + b"\n"
    head = (
        f"HTTP/1.1 {status} {REASONS[status]}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"cache-control: no-store\r\nallow: GET, HEAD\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
