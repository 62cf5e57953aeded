"""The streams of tool routes: each call becomes a run of its own, which outlives its caller."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from extproc.contract.errors import FORMS
from extproc.decision.tool_call import ToolRoute
from extproc.processor import tool_answers
from extproc.processor.client_stream import ClientStream
from extproc.processor.intake import ClientGone, RequestRejected, check_head, read_body
from extproc.processor.messages import RequestHeaders
from extproc.processor.ports import Stream
from extproc.processor.tool_audience import Audience
from extproc.processor.tool_request import ToolRequest, read_tool_request
from extproc.processor.tool_run import ToolBroke, ToolRun
from extproc.replicas.attempt_client import AttemptClient
from extproc.tools.interface import ToolLedger

REQUEST_BYTES_MAX: Final = 8 << 20
"""Of a tool call's body, which is held whole while the ledger is asked."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolWorld:
    """What the runs of one processor share. ``key_secret`` is the same in all gateways that share a ledger."""

    attempts: AttemptClient
    ledger: ToolLedger
    key_secret: bytes
    request_bytes_max: int = REQUEST_BYTES_MAX


class ToolService:
    """Serves ext_proc streams of tool routes."""

    def __init__(self, world: ToolWorld) -> None:
        self._world = world
        self._runs: set[asyncio.Task[None]] = set()

    async def serve(self, stream: Stream, head: RequestHeaders, route: ToolRoute) -> None:
        """Serve one request, from behind its head. The client's leaving is this task's cancellation."""
        client = ClientStream(stream.write)
        try:
            check_head(head, self._world.request_bytes_max)
            body = b"" if head.end_of_stream else await read_body(stream.read, self._world.request_bytes_max)
            request = read_tool_request(route, head, body, self._world.key_secret)
        except RequestRejected as rejected:
            headers, answer = tool_answers.refused(rejected.code, None, str(rejected))
            await Audience(client).refuse(FORMS[rejected.code].status, headers, answer, outcome=str(rejected.code))
            return
        except ClientGone:
            return
        try:
            await self._run(request, Audience(client))
        except ToolBroke as broke:
            await stream.abort(str(broke))

    async def stop(self, limit_s: float) -> None:
        """Let running calls end for ``limit_s`` seconds; what is left is recorded as unknown."""
        if self._runs:
            await asyncio.wait(self._runs, timeout=limit_s)
        for task in self._runs:
            task.cancel()
        await asyncio.gather(*self._runs, return_exceptions=True)

    async def _run(self, request: ToolRequest, audience: Audience) -> None:
        run = ToolRun(request=request, attempts=self._world.attempts, ledger=self._world.ledger, audience=audience)
        task = self._start(run)
        serving = asyncio.current_task()
        assert serving is not None
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not serving.cancelling():  # the run was stopped with the process, and has said so to its caller
                if audience.begun:
                    raise ToolBroke("the gateway process was stopped") from None
                return
            audience.leave()
            if request.call is None:
                task.cancel()
            raise

    def _start(self, run: ToolRun) -> asyncio.Task[None]:
        task = asyncio.create_task(run.serve(), name="tool call")
        self._runs.add(task)
        task.add_done_callback(lambda done: self._ended(done, run))
        return task

    def _ended(self, task: asyncio.Task[None], run: ToolRun) -> None:
        self._runs.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, ToolBroke):
            _log.error("a tool call broke", exc_info=error)
        if run.unrecorded is not None:
            later = asyncio.create_task(run.record_later(), name="record a tool call")
            self._runs.add(later)
            later.add_done_callback(self._runs.discard)
