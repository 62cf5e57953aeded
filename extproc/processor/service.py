"""The ext_proc service: one stream a request, each led to the session that its path asks for.

Whatever happens, a stream never ends with OK and no answer: Envoy would send the request on without its body (FACTS C9).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Final

from extproc.contract import headers as names
from extproc.contract.errors import FORMS, ClientError, ErrorCode
from extproc.decision import events
from extproc.decision.effects import Outcome
from extproc.decision.gates import Gate
from extproc.decision.idempotency import ClaimOutcome
from extproc.decision.policy import Mode, Policy, ToolsMode
from extproc.decision.request import RequestState
from extproc.journal.records import EventKind
from extproc.journal.texts import TEXT_BYTES_MAX, RequestText
from extproc.processor import messages, wording
from extproc.processor.body_room import BODIES_BYTES_MAX, BodyRoom, BodyShare
from extproc.processor.client_stream import ClientStream, Metadata, Written
from extproc.processor.intake import ClientGone, RequestRejected, check_head, read_body, read_request, trace_parent
from extproc.processor.keyed import KeptClientStream, answer_repeat
from extproc.processor.messages import RequestHeaders
from extproc.processor.ports import Stream, World
from extproc.processor.record import RequestRecord
from extproc.processor.session import Session
from extproc.processor.speaker import StreamAborted
from extproc.processor.tool_service import ToolService
from extproc.processor.watched import WatchedExchange
from extproc.routes.problems import PolicyError
from extproc.routes.tool_route import read_tool_route
from extproc.sse.dialects import Dialect, dialect_of_path
from extproc.sse.terminal import error_body

LOGGER: Final = logging.getLogger("deltafence.processor")


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteQuestion:
    """What a route's policy is found by; each is None where Envoy sent nothing."""

    initial_metadata: str | None
    route_metadata: str | None
    route_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """Bounds of one processor process."""

    request_bytes_max: int
    streams_max: int
    bodies_bytes_max: int = BODIES_BYTES_MAX
    """Of all bodies together that may still be repeated."""


class Service:
    """Serves ext_proc streams. Invariant: ``sessions`` holds exactly the generation requests that are running."""

    def __init__(
        self,
        world: World,
        limits: ServiceLimits,
        policy_of: Callable[[RouteQuestion], Policy],
        tools: ToolService | None = None,
    ) -> None:
        """``tools`` serves tool routes; None where no ledger runs."""
        self._world = world
        self._tools = tools
        self._limits = limits
        self._policy_of = policy_of
        self._streams = 0
        self.bodies = BodyRoom(limits.bodies_bytes_max)
        self._outliving: set[asyncio.Task[None]] = set()
        self.sessions: set[Session] = set()

    async def process(self, stream: Stream) -> None:
        """Serve one HTTP request of Envoy's, on either transport."""
        self._streams += 1
        try:
            await self._serve(stream)
        finally:
            self._streams -= 1

    def end_sessions(self) -> None:
        """The drain limit is reached: end what is left, each in words."""
        for session in self.sessions:
            session.put(events.DrainLimitReached())

    async def _serve(self, stream: Stream) -> None:
        first = await stream.read()
        if first is None:
            return
        if first.WhichOneof("request") != "request_headers":
            await stream.abort("the first message must be request_headers")
        head = messages.request_headers(first)
        tool_route = _initial_metadata(stream, names.TOOL)
        if tool_route is not None:
            await self._serve_tool(stream, head, tool_route)
            return
        question = RouteQuestion(
            initial_metadata=_initial_metadata(stream, names.POLICY),
            route_metadata=messages.attribute(first, "xds.route_metadata"),
            route_name=messages.attribute(first, "xds.route_name"),
        )
        policy = self._policy_of(question)
        is_observed = first.observability_mode
        del first  # a stream lives for minutes, and this is the largest thing that it would keep
        dialect = dialect_of_path(head.path) if head.method == "POST" else None
        if is_observed:
            await self._watch(stream, dialect, head, policy, question.route_name or "")
            return
        if dialect is None or policy.mode is not Mode.ENFORCE:
            await _pass_through(stream, head)
            return
        client = self._client_stream(stream, policy)
        request_id = f"req_{self._world.new_id()}"
        share = BodyShare(self.bodies)
        try:
            await self._generate(stream, client, request_id, dialect, head, policy, question.route_name or "", share)
        except RequestRejected as rejected:
            await self._turn_away(client, request_id, dialect, rejected)
        except ClientGone:
            LOGGER.info("the client left while its body was uploaded", extra={"request_id": request_id})
        except StreamAborted as aborted:
            await stream.abort(str(aborted))
        except Exception:
            LOGGER.exception("the session broke", extra={"request_id": request_id})
            if client.written is not Written.NOTHING:
                raise
            await _reject(client, request_id, dialect, RequestRejected(ErrorCode.INTERNAL_ERROR, "see the gateway's log"))
        finally:
            share.give_back()

    async def _watch(self, stream: Stream, dialect: Dialect | None, head: RequestHeaders, policy: Policy, route: str) -> None:
        """Envoy reads no answers on this stream; what is not watched is read away all the same."""
        if dialect is None or self._streams > self._limits.streams_max:
            while await stream.read() is not None:
                pass
            return
        exchange = WatchedExchange(
            world=self._world,
            policy=policy,
            route=route,
            dialect=dialect,
            head=head,
            request_bytes_max=self._limits.request_bytes_max,
            afterwards=self._afterwards,
        )
        await exchange.watch(stream)

    def _afterwards(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._outliving.add(task)
        task.add_done_callback(self._outliving.discard)

    async def _serve_tool(self, stream: Stream, head: RequestHeaders, description: str) -> None:
        if self._tools is None:
            await stream.abort("a tool route needs the ledger, and this processor has no journal database (--journal)")
        try:
            route = read_tool_route(description)
        except PolicyError as error:
            await stream.abort(f"{names.TOOL}: {error}")
        await self._tools.serve(stream, head, route)

    def _client_stream(self, stream: Stream, policy: Policy) -> ClientStream:
        keying = self._world.keying
        if not (policy.journal.replay or policy.journal.store_text):
            return ClientStream(stream.write, stream.write_now)
        return KeptClientStream(stream.write, keys=keying.keys, bytes_max=keying.answer_bytes_max)

    async def _turn_away(self, client: ClientStream, request_id: str, dialect: Dialect, rejected: RequestRejected) -> None:
        self._world.observer.turned_away(request_id=request_id, api=dialect, code=rejected.code)
        await _reject(client, request_id, dialect, rejected)

    async def _generate(
        self,
        stream: Stream,
        client: ClientStream,
        request_id: str,
        dialect: Dialect,
        head: RequestHeaders,
        policy: Policy,
        route: str,
        share: BodyShare,
    ) -> None:
        if self._streams > self._limits.streams_max:
            raise RequestRejected(ErrorCode.OVERLOADED, f"this gateway serves {self._limits.streams_max} streams already")
        if self._world.is_draining():
            raise RequestRejected(ErrorCode.DRAINING, "this gateway is shutting down; send the request again")
        check_head(head, self._limits.request_bytes_max)
        body = b"" if head.end_of_stream else await read_body(stream.read, self._limits.request_bytes_max, share)
        request = read_request(dialect, head, body, share)
        if not self._world.journal.available:
            raise RequestRejected(
                ErrorCode.JOURNAL_UNAVAILABLE, "the request journal is unavailable; send the request again later"
            )
        claimed = await self._world.keying.claim(head, body, request_id)
        if claimed is not None and claimed.outcome is not ClaimOutcome.NEW:
            await answer_repeat(client, dialect, claimed, replay=policy.journal.replay)
            return
        # From here to ADMITTED nothing may wait: a claimed key's request must be in the journal, whatever happens next.
        journal = self._world.journal if claimed is None else self._world.keying.journal
        record = RequestRecord(
            journal, request_id if claimed is None else claimed.request_id, self._world.wall_ms, self._world.observer
        )
        record.note(
            EventKind.ADMITTED,
            api=dialect,
            model=request.model,
            route=route,
            stream=request.stream,
            traceparent=trace_parent(head.headers),
        )
        if claimed is not None and policy.journal.replay and isinstance(client, KeptClientStream):
            client.keep_for(record.request_id)
        text = body[:TEXT_BYTES_MAX] if policy.journal.store_text else b""
        del body  # the request has it, and lets go of it at the boundary
        session = Session(world=self._world, request=request, policy=policy, client=client, record=record)
        try:
            if claimed is not None and claimed.run > 1 and await self._tools_forbid(record.request_id, policy):
                await _refuse_further_run(client, record, dialect)
                return
            self.sessions.add(session)
            await session.run()
        finally:
            self.sessions.discard(session)
            if not record.ended:
                _record_broken_session(record, session.state)
            if policy.journal.store_text and isinstance(client, KeptClientStream):
                self._world.texts.keep(record.request_id, RequestText(request=text, answer=client.copy))

    async def _tools_forbid(self, request_id: str, policy: Policy) -> bool:
        """A key's further run is a repeat like any other: not where a tool may be called twice (R12)."""
        return policy.tools is ToolsMode.REFUSE and await self._world.tool_call_recorded(request_id)


async def _refuse_further_run(client: ClientStream, record: RequestRecord, dialect: Dialect) -> None:
    code = ErrorCode.TOOL_SIDE_EFFECTS_POSSIBLE
    detail = "an earlier run of this Idempotency-Key called a tool, and this route does not protect its tools with the ledger"
    record.note(EventKind.REPEAT_REFUSED, gate=Gate.TOOLS, detail=detail)
    record.note(EventKind.ENDED, outcome=Outcome.FAILED, reason=code, error_code=code, delivered_output_tokens=0)
    await _reject(client, record.request_id, dialect, RequestRejected(code, detail))


def _record_broken_session(record: RequestRecord, state: RequestState) -> None:
    """A fault of ours has ended the session: how much was delivered is not known, so the least is claimed that is certain."""
    record.note(
        EventKind.ENDED,
        outcome=Outcome.INTERRUPTED if state.first_delta_sent else Outcome.FAILED,
        reason=ErrorCode.INTERNAL_ERROR,
        error_code=ErrorCode.INTERNAL_ERROR,
        delivered_output_tokens=0,
        delivered_output_tokens_source="unknown",
    )


async def _pass_through(stream: Stream, head: RequestHeaders) -> None:
    """Let a request that is no generation of ours go on untouched."""
    await stream.write(messages.passthrough_headers())
    while not head.end_of_stream:
        message = await stream.read()
        if message is None:
            return
        match message.WhichOneof("request"):
            case "request_body":
                body = message.request_body
                await stream.write(messages.passthrough_body(body.body, body.end_of_stream))
            case "request_trailers":
                await stream.write(messages.passthrough_trailers())
            case kind:
                LOGGER.warning("unexpected %s on a passed-through request; check processing_mode", kind)


async def _reject(client: ClientStream, request_id: str, dialect: Dialect, rejected: RequestRejected) -> None:
    error = ClientError(
        code=rejected.code,
        message=str(rejected),
        request_id=request_id,
        partial_output=False,
        delivered_output_tokens=0,
        reason=str(rejected.code),
        attempts=0,
    )
    metadata: Metadata = {
        "request_id": request_id,
        "phase": "ended",
        "outcome": "failed",
        "reason": str(rejected.code),
        "attempts": 0,
    }
    await client.answer(
        FORMS[rejected.code].status,
        wording.error_headers(error, None),
        error_body(dialect, error),
        details=f"deltafence_{rejected.code}",
        metadata=metadata,
    )


def _initial_metadata(stream: Stream, name: str) -> str | None:
    return next((value for key, value in stream.initial_metadata if key == name), None)
