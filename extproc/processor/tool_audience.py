"""Whoever called a tool, as long as he listens: writing to a caller that has left does nothing."""

import asyncio
import logging
from collections.abc import Awaitable, Sequence

from extproc.processor.client_stream import ClientStream, Metadata, Written, make_head

Headers = Sequence[tuple[str, str]]

_log = logging.getLogger(__name__)

WITHOUT_BODY = frozenset({204, 304})
"""RFC 9110 section 8.6: no content-length on these."""


def _metadata(outcome: str) -> Metadata:
    return {"phase": "tool", "outcome": outcome}


class Audience:
    """Invariant: after ``leave`` nothing is written any more, whatever is still on the way."""

    def __init__(self, client: ClientStream) -> None:
        self._client: ClientStream | None = client

    @property
    def present(self) -> bool:
        """Whether the caller is still there, as far as is known."""
        return self._client is not None

    @property
    def begun(self) -> bool:
        """Whether the caller has part of an answer, and not its end."""
        return self._client is not None and self._client.written is Written.HEAD

    def leave(self) -> None:
        """The caller is gone."""
        self._client = None

    async def begin(self, status: int, headers: Headers) -> None:
        """The head of an answer."""
        if self._client is not None:
            await self._try(self._client.begin(make_head(status, headers)))

    async def write(self, data: bytes) -> None:
        """A piece of its body."""
        if self._client is not None:
            await self._try(self._client.write(data))

    async def end(self, data: bytes = b"", outcome: str = "answered") -> None:
        """Its last piece; ``outcome`` goes to Envoy's access log."""
        if self._client is not None:
            await self._try(self._client.end(data, _metadata(outcome)))

    async def refuse(self, status: int, headers: Headers, body: bytes, *, outcome: str) -> None:
        """A whole answer at any time, also while the request still comes. No header may be given twice."""
        if self._client is not None:
            details = f"deltafence_{outcome}"
            await self._try(self._client.answer(status, headers, body, details=details, metadata=_metadata(outcome)))

    async def answer(self, status: int, headers: Headers, body: bytes, *, outcome: str) -> None:
        """A whole answer to a request that has come to its end. In two messages: one would lose headers that are given twice."""
        length = [] if status in WITHOUT_BODY else [("content-length", str(len(body)))]
        await self.begin(status, [*headers, *length])
        await self.end(body, outcome)

    async def _try(self, writing: Awaitable[None]) -> None:
        """A transport says in many ways that its peer is gone, some of them cancellations; none may stop a call's bookkeeping."""
        task = asyncio.current_task()
        try:
            await writing
        except asyncio.CancelledError:
            if task is not None and task.cancelling():
                raise
            self.leave()
        except Exception as error:
            _log.debug("the caller of a tool left: %r", error)
            self.leave()
