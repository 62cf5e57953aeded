"""A service whose world is under the test's control: an in-memory ext_proc stream, and attempts that do what a test says."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from extproc.decision.causes import Failure, Fencing
from extproc.decision.policy import Policy
from extproc.journal.interface import JournalUnavailable
from extproc.journal.memory import MemoryJournal
from extproc.journal.memory_keys import MemoryKeys
from extproc.journal.records import EventKind, JournalEvent
from extproc.processor.keyed import Keying
from extproc.processor.pools import Pools
from extproc.processor.ports import World
from extproc.processor.protobuf import HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse
from extproc.processor.service import Service, ServiceLimits
from extproc.replicas.attempt_client import AttemptListener, AttemptRequest, ResponseHead
from extproc.replicas.http1_attempt_client import encode_head
from extproc.replicas.roster import Replica, Roster
from extproc.replicas.unguarded import UnguardedFence

A, B, C = (Replica(destination=f"10.0.0.{number}:8000", url=f"http://10.0.0.{number}:8000") for number in (1, 2, 3))
SSE = (("content-type", "text/event-stream"),)


class AbortedError(Exception):
    """The stream was ended with a gRPC error."""


class FakeStream:
    """Envoy's side: what it will send, and what it was sent."""

    at_once = True
    """Whether bytes can be written without waiting."""

    def __init__(self, messages: Sequence[ProcessingRequest], metadata: Sequence[tuple[str, str]] = ()) -> None:
        self.messages = list(messages)
        self.initial_metadata = metadata
        self.sent: list[ProcessingResponse] = []
        self.changed = asyncio.Event()
        self.before_write: Callable[[], Awaitable[None]] | None = None

    async def read(self) -> ProcessingRequest | None:
        return self.messages.pop(0) if self.messages else None

    def write_now(self, data: bytes) -> bool:
        if self.before_write is not None or not self.at_once:
            return False
        self.sent.append(ProcessingResponse.FromString(data))
        self.changed.set()
        return True

    async def write(self, message: ProcessingResponse | bytes) -> None:
        if self.before_write is not None:
            await self.before_write()
        self.sent.append(ProcessingResponse.FromString(message) if isinstance(message, bytes) else message)
        self.changed.set()

    async def abort(self, detail: str) -> NoReturn:
        raise AbortedError(detail)

    @property
    def status(self) -> int | None:
        """The answer's status, in whichever form it was given."""
        for message in self.sent:
            if message.HasField("immediate_response"):
                return int(message.immediate_response.status.code)
            for header in message.streamed_immediate_response.headers_response.headers.headers:
                if header.key == ":status":
                    return int(header.raw_value)
        return None

    def header(self, name: str) -> str | None:
        for message in self.sent:
            for header in message.streamed_immediate_response.headers_response.headers.headers:
                if header.key == name:
                    return header.raw_value.decode()
            for option in message.immediate_response.headers.set_headers:
                if option.header.key == name:
                    return option.header.raw_value.decode()
        return None

    @property
    def body(self) -> bytes:
        return b"".join(
            message.immediate_response.body or message.streamed_immediate_response.body_response.body for message in self.sent
        )

    @property
    def ended(self) -> bool:
        """Whether the answer was ended, and exactly once."""
        ends = [
            message
            for message in self.sent
            if message.HasField("immediate_response") or message.streamed_immediate_response.body_response.end_of_stream
        ]
        assert len(ends) <= 1
        assert not ends or ends[0] is self.sent[-1]
        return bool(ends)


@dataclass
class FakeAttempt:
    """One attempt's connection, driven by the test. Signals go to the session as the real connection's do."""

    request: bytes
    body: bytes
    listener: AttemptListener
    closed: bool = False
    paused: bool = False

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    @property
    def destination(self) -> str:
        return self.header("x-gateway-destination-endpoint") or ""

    def header(self, name: str) -> str | None:
        for line in self.request.decode("latin-1").split("\r\n"):
            if line.startswith(f"{name}: "):
                return line.removeprefix(f"{name}: ")
        return None

    def head(self, status: int = 200, headers: Sequence[tuple[str, str]] = SSE) -> None:
        self.listener.response_started(ResponseHead(status=status, headers=tuple(headers)))

    def send(self, data: bytes) -> None:
        self.listener.body_received(data)

    def end(self, broken: str | None = None) -> None:
        self.listener.attempt_ended(broken)


class FakeAttempts:
    """Stands in for AttemptClient: opened attempts wait for the test in ``opened``."""

    def __init__(self) -> None:
        self.opened: asyncio.Queue[FakeAttempt] = asyncio.Queue()
        self.count = 0
        self.refuse: OSError | None = None

    async def open(self, request: AttemptRequest, listener: AttemptListener) -> Any:
        if self.refuse is not None:
            raise self.refuse
        self.count += 1
        attempt = FakeAttempt(encode_head(request), request.body, listener)
        self.opened.put_nowait(attempt)
        return attempt


class BrokenJournal(MemoryJournal):
    """Can't hold a boundary."""

    async def commit(self, event: JournalEvent) -> None:
        if event.kind is EventKind.FIRST_DELTA_SENT:
            raise JournalUnavailable("disk full")
        await super().commit(event)


class SlowFence(UnguardedFence):
    """A fence whose proof the test gives."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[Fencing] = asyncio.Queue()
        self.proof: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.cancelled: list[str] = []

    async def fence(self, attempt_id: str, replica: Replica, fencing: Fencing, failure: Failure) -> str | None:
        self.asked.put_nowait(fencing)
        return await self.proof

    def cancel(self, attempt_id: str, replica: Replica) -> None:
        self.cancelled.append(attempt_id)


@dataclass
class Stage:
    """One service and its world."""

    policy: Policy = field(default_factory=Policy)
    replicas: tuple[Replica, ...] = (A, B, C)
    journal: MemoryJournal = field(default_factory=MemoryJournal)
    fence: Any = field(default_factory=UnguardedFence)
    held_bytes_max: int = 1 << 20
    draining: bool = False
    attempts: FakeAttempts = field(default_factory=FakeAttempts)
    service: Service = field(init=False)
    ids: int = 0

    def __post_init__(self) -> None:
        self.roster = Roster(self.replicas)
        self.service = Service(
            World(
                roster=self.roster,
                attempts=self.attempts,  # type: ignore[arg-type]  (its shape, under the test's control)
                fence=self.fence,
                journal=self.journal,
                pools=Pools(),
                tool_call_recorded=self.tool_call_recorded,
                now_ms=lambda: int(asyncio.get_running_loop().time() * 1000),
                wall_ms=lambda: 0,
                new_id=self.new_id,
                held_bytes_max=self.held_bytes_max,
                is_draining=lambda: self.draining,
                keying=Keying(keys=MemoryKeys(self.journal, lambda: 0), journal=self.journal, secret=b"secret"),
            ),
            ServiceLimits(request_bytes_max=1 << 20, streams_max=100),
            lambda question: self.policy,
        )
        self.tool_calls = False

    async def tool_call_recorded(self, request_id: str) -> bool:
        return self.tool_calls

    def new_id(self) -> str:
        self.ids += 1
        return str(self.ids)

    def ask(
        self, path: str = "/v1/chat/completions", document: dict[str, Any] | None = None, method: str = "POST"
    ) -> tuple[FakeStream, "asyncio.Task[None]"]:
        """Send a request; the stream that its answer goes to, and the task that serves it."""
        body = json.dumps({"model": "m", "stream": True, "messages": []} if document is None else document).encode()
        headers = HttpHeaders()
        for name, value in ((":method", method), (":path", path), (":authority", "gateway")):
            headers.headers.headers.add(key=name, raw_value=value.encode())
        messages = [
            ProcessingRequest(request_headers=headers),
            ProcessingRequest(request_body=HttpBody(body=body, end_of_stream=True)),
        ]
        stream = FakeStream(messages)
        return stream, asyncio.create_task(self.service.process(stream))

    async def facts(self, request_id: str) -> Any:
        return await self.journal.facts(request_id)


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until something holds; the loop has no timers in these tests, so it takes a few turns or never comes."""
    for _ in range(200):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("never happened")


def event(delta: dict[str, Any] | None = None, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    chunk = {"object": "chat.completion.chunk", "choices": [choice]}
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


ROLE = event({"role": "assistant", "content": ""})
FINISH = event({"content": ""}, "stop")
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error": {"message": "boom", "type": "InternalServerError", "code": 500}}\n\n'


def text(value: str) -> bytes:
    return event({"content": value})
