"""One HTTP exchange with a tool over the egress listener, read in order by one reader."""

import asyncio
from dataclasses import dataclass
from typing import Final

from extproc.processor.inbox import Inbox
from extproc.replicas.attempt_client import AttemptClient, AttemptConnection, AttemptRequest, ResponseHead

UNREAD_BYTES_MAX: Final = 1 << 20
"""Received and not yet read; above it the tool waits."""


@dataclass(frozen=True, slots=True)
class HeadArrived:
    """The response's status and headers."""

    head: ResponseHead


@dataclass(frozen=True, slots=True)
class PieceArrived:
    """A piece of the response's body."""

    data: bytes


@dataclass(frozen=True, slots=True)
class ExchangeOver:
    """The response ended, whole as HTTP sees it (``broken`` is None) or broken, with the evidence."""

    broken: str | None


ExchangeSignal = HeadArrived | PieceArrived | ExchangeOver


class ToolExchange:
    """The listener of one connection to a tool."""

    def __init__(self, *, expects_body: bool) -> None:
        self._expects_body = expects_body
        self._inbox: Inbox[ExchangeSignal] = Inbox()
        self._connection: AttemptConnection | None = None
        self._unread_bytes = 0
        self._paused = False

    async def open(self, attempts: AttemptClient, request: AttemptRequest) -> None:
        """Send the request. Raises OSError where the egress listener can't be reached: nothing was sent then."""
        self._connection = await attempts.open(request, self)

    async def next(self) -> ExchangeSignal:
        """What happened next; the last one is ExchangeOver."""
        signal = await self._inbox.get()
        if isinstance(signal, PieceArrived):
            self._unread_bytes -= len(signal.data)
            if self._paused and self._unread_bytes <= UNREAD_BYTES_MAX and self._connection is not None:
                self._paused = False
                self._connection.resume_reading()
        return signal

    def close(self) -> None:
        """Break the exchange off."""
        if self._connection is not None:
            self._connection.close()

    # AttemptListener

    def response_started(self, head: ResponseHead) -> None:
        self._inbox.put(HeadArrived(head))
        if not self._expects_body:  # the parser can't know that a response to HEAD has none
            self._inbox.put(ExchangeOver(None))
            asyncio.get_running_loop().call_soon(self.close)

    def body_received(self, data: bytes) -> None:
        self._inbox.put(PieceArrived(data))
        self._unread_bytes += len(data)
        if self._unread_bytes > UNREAD_BYTES_MAX and not self._paused and self._connection is not None:
            self._paused = True
            self._connection.pause_reading()

    def attempt_ended(self, broken: str | None) -> None:
        self._inbox.put(ExchangeOver(broken))
