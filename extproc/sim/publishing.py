"""The way out: one response, and the record of what the connection really took."""

import time

from starlette.types import Message, Send

from extproc.sim.dialects.writer import Event, EventKind, Json, encode_json
from extproc.sim.request_log import Record

EVENT_STREAM = b"text/event-stream; charset=utf-8"
JSON = b"application/json"


class Publisher:
    """Sends one response. A chunk is recorded after ``send`` took it, so the record never claims what a guard refused."""

    def __init__(self, send: Send, record: Record) -> None:
        self._send = send
        self._record = record
        self.is_started = False
        self.is_ending = False
        """The last message is on its way: a disconnect from here on is no longer the client's leaving (CAN-02)."""

    async def start(self, status: int, content_type: bytes, extra: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        headers = [(b"content-type", content_type), *extra]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        self.is_started = True
        self._record.status = status
        self._record.headers_at = time.monotonic()

    async def publish(self, *events: Event) -> None:
        """Each event as a chunk of its own, as vLLM's generator gives them to Starlette."""
        for event in events:
            await self._send_body(event, more=True)

    async def end(self) -> None:
        """The clean end of the body."""
        self.is_ending = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def error(self, status: int, body: Json, retry_after_s: int | None = None) -> None:
        """A whole error answer."""
        data = encode_json(body)
        extra = [(b"content-length", str(len(data)).encode())]
        if retry_after_s is not None:
            extra.append((b"retry-after", str(retry_after_s).encode()))
        await self.start(status, JSON, tuple(extra))
        self.is_ending = True
        await self._send_body(Event(EventKind.BODY, data), more=False)

    async def _send_body(self, event: Event, *, more: bool) -> None:
        message: Message = {"type": "http.response.body", "body": event.data, "more_body": more}
        await self._send(message)
        self._record.published(event)
