"""The acts of a fault. Each either lets the request go on, or leaves it by one of the exceptions named here."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Final

from extproc.sim.connection import Connection
from extproc.sim.dialects.writer import Event, EventKind, Writer, error_body
from extproc.sim.engine import ENGINE_ERROR, Engine, EngineAborted, EngineError, Sequence
from extproc.sim.faults import Fault, What, Where
from extproc.sim.publishing import EVENT_STREAM, JSON, Publisher
from extproc.sim.request_log import Ended, Record

_GARBAGE: Final = b'data: {"choices":[{"index":0,"delta":{"content":"\xff\xfe\n\n'
ENGINE_DEATH_DELAY_MS: Final = 500.0


class Struck(Exception):  # noqa: N818  (no error: it was planned)
    """A fault has ended this request's answer; nothing more is to be sent."""


class Strikes:
    """The faults of one request, carried out where it passes their places."""

    def __init__(
        self,
        faults: tuple[Fault, ...],
        *,
        publisher: Publisher,
        writer: Writer,
        record: Record,
        engine: Engine,
        connection: Connection,
    ) -> None:
        self.faults = faults
        self.publisher = publisher
        self.writer = writer
        self.record = record
        self.engine = engine
        self.connection = connection
        self.sequence: Sequence | None = None
        self.slowness = 1.0

    @property
    def is_body_cut(self) -> bool:
        """Whether a clean end may come before the announced length: then no length is announced."""
        return any(fault.what in (What.EOF, What.GARBAGE, What.DONE) for fault in self.faults)

    def has(self, where: Where, deltas: int = 0) -> bool:
        return any(fault.is_at(where, deltas) for fault in self.faults)

    async def at(self, where: Where, deltas: int = 0) -> None:
        """Raises Struck, EngineError, EngineAborted; or never returns, where the connection or the process ends."""
        for fault in self.faults:
            if fault.is_at(where, deltas):
                self.record.fault = fault.label
                if fault.what is not What.ENGINE_DEATH:
                    await asyncio.sleep(fault.delay_ms / 1000)
                await _ACTS[fault.what](self, fault)


async def _end_process(strikes: Strikes, fault: Fault) -> None:
    await strikes.connection.flush()
    if fault.what is What.EXIT:
        os._exit(fault.status or 0)
    os.kill(os.getpid(), signal.SIGSTOP if fault.what is What.FREEZE else signal.SIGKILL)


async def _engine_death(strikes: Strikes, fault: Fault) -> None:
    strikes.engine.die()
    asyncio.get_running_loop().call_later((fault.delay_ms or ENGINE_DEATH_DELAY_MS) / 1000, os._exit, 0)
    strikes.engine.check()


async def _end_connection(strikes: Strikes, fault: Fault) -> None:
    await strikes.connection.flush()
    strikes.record.end(Ended.FAULT)
    end = {What.RESET: strikes.connection.reset, What.CLOSE: strikes.connection.close}
    end.get(fault.what, strikes.connection.malformed)()
    await _forever()


async def _stall(strikes: Strikes, fault: Fault) -> None:
    await _forever()


async def _hold(strikes: Strikes, fault: Fault) -> None:
    await strikes.engine.hold()


async def _forever() -> None:
    # Ends with the client's disconnect (or the guard's cancel), which cancels this task. A return would make uvicorn report an
    # unfinished answer.
    await asyncio.Event().wait()


async def _slow(strikes: Strikes, fault: Fault) -> None:
    strikes.slowness = fault.factor
    if strikes.sequence is not None:
        strikes.sequence.slowness = fault.factor


async def _hang(strikes: Strikes, fault: Fault) -> None:
    strikes.engine.hang()


async def _error_event(strikes: Strikes, fault: Fault) -> None:
    raise EngineError(fault.message or ENGINE_ERROR)


async def _abort(strikes: Strikes, fault: Fault) -> None:
    raise EngineAborted


async def _end_body(strikes: Strikes, fault: Fault) -> None:
    publisher = strikes.publisher
    if not publisher.is_started:
        await publisher.start(200, EVENT_STREAM if strikes.writer.request.stream else JSON)
    if fault.what is What.GARBAGE:
        await publisher.publish(Event(EventKind.GARBAGE, _GARBAGE))
    if fault.what is What.DONE and strikes.writer.request.stream:
        await publisher.publish(*strikes.writer.done())
    await publisher.end()
    strikes.record.end(Ended.FAULT)
    raise Struck


async def _http_error(strikes: Strikes, fault: Fault) -> None:
    status = fault.status or 503
    body = error_body(strikes.writer.request.api, status, fault.message or "The server is overloaded.")
    await strikes.publisher.error(status, body, fault.retry_after_s)
    strikes.record.end(Ended.FAULT)
    raise Struck


_ACTS: Final[dict[What, Callable[[Strikes, Fault], Awaitable[None]]]] = {
    What.KILL: _end_process,
    What.EXIT: _end_process,
    What.FREEZE: _end_process,
    What.ENGINE_DEATH: _engine_death,
    What.HANG: _hang,
    What.RESET: _end_connection,
    What.CLOSE: _end_connection,
    What.MALFORMED: _end_connection,
    What.EOF: _end_body,
    What.DONE: _end_body,
    What.GARBAGE: _end_body,
    What.ERROR_EVENT: _error_event,
    What.ABORT: _abort,
    What.STALL: _stall,
    What.HOLD: _hold,
    What.SLOW: _slow,
    What.HTTP_ERROR: _http_error,
}
