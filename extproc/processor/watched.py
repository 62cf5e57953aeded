"""Reads the copies that Envoy sends of an exchange in observability mode, and leads them to an Observation.

Nothing is ever answered: Envoy reads no answers in this mode. Whatever can't be read is left unobserved, with a line in the log.
"""

import logging
from collections.abc import Callable, Coroutine
from typing import Final

from extproc.contract import headers as names
from extproc.contract.errors import ErrorCode
from extproc.decision.policy import Policy
from extproc.journal.records import EventKind
from extproc.processor import messages
from extproc.processor.intake import GenerationRequest, RequestRejected, read_request, trace_parent
from extproc.processor.messages import RequestHeaders
from extproc.processor.observation import Observation
from extproc.processor.ports import Stream, World
from extproc.processor.protobuf import ProcessingRequest
from extproc.processor.record import RequestRecord
from extproc.replicas.attempt_client import ResponseHead
from extproc.sse.dialects import Dialect

LOGGER: Final = logging.getLogger("deltafence.observe")

ENVOY_FLAG_BITS: Final = {"UH": 1, "LR": 3, "UR": 4, "UF": 5, "UC": 6, "UO": 7, "NR": 8, "UPE": 23, "NC": 24, "OM": 25}
"""Bits of the attribute ``response.flags`` (Envoy, envoy/stream_info/stream_info.h, CoreResponseFlag)."""


class WatchedExchange:
    """One exchange, from its request's head to the end of its copies."""

    def __init__(
        self,
        *,
        world: World,
        policy: Policy,
        route: str,
        dialect: Dialect,
        head: RequestHeaders,
        request_bytes_max: int,
        afterwards: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        """``afterwards`` runs what has to outlive the stream."""
        self._world = world
        self._policy = policy
        self._route = route
        self._dialect = dialect
        self._head = head
        self._request_bytes_max = request_bytes_max
        self._afterwards = afterwards
        self._pieces: list[bytes] = []
        self._size = 0
        self._observation: Observation | None = None

    async def watch(self, stream: Stream) -> None:
        """Read until Envoy lets go."""
        try:
            if self._head.end_of_stream:
                self._begin()
            while (message := await stream.read()) is not None:
                self._take(message)
        finally:
            if self._observation is not None and not self._observation.over:
                # Not in this task: Envoy resets the stream once its copies are out, and that cancels whoever serves it.
                self._afterwards(self._observation.cut())

    def _take(self, message: ProcessingRequest) -> None:
        match message.WhichOneof("request"):
            case "request_body":
                self._take_request(message.request_body.body, message.request_body.end_of_stream)
            case "request_trailers":
                self._begin()
            case "response_headers":
                self._take_head(message)
            case "response_body" if self._observation is not None:
                self._observation.body_received(message.response_body.body)
                if message.response_body.end_of_stream:
                    self._observation.ended()
            case "response_trailers" if self._observation is not None:
                self._observation.ended()

    def _take_request(self, body: bytes, is_last: bool) -> None:
        self._size += len(body)
        if self._size <= self._request_bytes_max:
            self._pieces.append(body)
        if is_last:
            self._begin()

    def _begin(self) -> None:
        if self._observation is not None:
            return
        request = self._read_request()
        if request is None:
            return
        request.body.release()  # nothing is ever sent again
        record = RequestRecord(self._world.journal, f"req_{self._world.new_id()}", self._world.wall_ms, self._world.observer)
        record.note(
            EventKind.ADMITTED,
            api=self._dialect,
            model=request.model,
            route=self._route,
            stream=request.stream,
            traceparent=trace_parent(self._head.headers),
            mode=self._policy.mode,
            x_request_id=next((value for name, value in self._head.headers if name == "x-request-id"), None),
        )
        self._observation = Observation(world=self._world, request=request, policy=self._policy, record=record)

    def _read_request(self) -> GenerationRequest | None:
        body = b"".join(self._pieces)
        self._pieces.clear()
        try:
            if self._size > self._request_bytes_max:
                raise RequestRejected(ErrorCode.REQUEST_TOO_LARGE, f"its body is larger than {self._request_bytes_max} bytes")
            return read_request(self._dialect, self._head, body)
        except RequestRejected as rejected:
            LOGGER.info("not observed: %s", rejected, extra={"route": self._route, "error_code": rejected.code})
            return None

    def _take_head(self, message: ProcessingRequest) -> None:
        self._begin()  # an early answer may overtake the end of its request
        if self._observation is None:
            return
        head = messages.response_head(message)
        details = messages.attribute(message, "response.code_details") or "via_upstream"
        flags = int(messages.number_attribute(message, "response.flags"))
        replica = messages.attribute(message, "upstream.address") or ""
        self._observation.response_started(with_envoys_flags(head, flags, details), replica)
        if message.response_headers.end_of_stream:
            self._observation.ended()


def with_envoys_flags(head: ResponseHead, flags: int, details: str) -> ResponseHead:
    """The head as the egress listener would have reported it: with Envoy's flags where Envoy gave the answer."""
    if details == "via_upstream":
        return head
    told = ",".join(name for name, bit in ENVOY_FLAG_BITS.items() if flags >> bit & 1)
    own = ((names.EGRESS_FLAGS, told or "-"), (names.EGRESS_DETAILS, details))
    return ResponseHead(status=head.status, headers=(*own, *head.headers))
