"""One trace per request, a span per attempt, fed by what the journal was told.

A client's ``traceparent`` is honoured: the request's span is its child. Without one, the request begins a trace whose id is made
of the request id (witness.py). An attempt's span is what the replica gets as ``traceparent``, so that vLLM's own spans join.
Spans are given the journal's times, so the trace and ``deltafence journal show`` tell the same story.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as gen_ai
from opentelemetry.semconv.attributes import error_attributes, server_attributes
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from extproc import __version__
from extproc.decision.effects import Outcome
from extproc.journal.records import Detail, EventKind, JournalEvent
from extproc.telemetry.metrics import operation_of
from extproc.telemetry.witness import Transition, TurnedAway

SCOPE: Final = "deltafence"
PROVIDER: Final = "vllm"
"""``gen_ai.provider.name``: whose servers these are; the convention allows names beyond its list."""
PREFIX: Final = "deltafence."

_PROPAGATOR: Final = TraceContextTextMapPropagator()


class RequestIds(RandomIdGenerator):
    """Random span ids; a trace that begins here has the id that the witness made of its request's."""

    def __init__(self) -> None:
        self.next_trace_id = 0

    def generate_trace_id(self) -> int:
        """The id set last."""
        return self.next_trace_id or super().generate_trace_id()


@dataclass(slots=True)
class _Traced:
    """One open request's spans. ``attempt`` ends with its fence, or with the request."""

    request: Span
    attempts: dict[str, Span] = field(default_factory=dict)


class RequestTraces:
    """A subscriber that makes spans. ``provider`` must have been made with ``ids``."""

    def __init__(self, provider: TracerProvider, ids: RequestIds) -> None:
        self._tracer = provider.get_tracer(SCOPE, __version__)
        self._ids = ids
        self._open: dict[str, _Traced] = {}
        self._attempts: dict[str, Span] = {}
        self._rules: Final[dict[EventKind, Callable[[_Traced, Transition], None]]] = {
            EventKind.ATTEMPT_STARTED: self._attempt_started,
            EventKind.RESPONSE_STARTED: self._happened_to_attempt,
            EventKind.FIRST_DELTA_SENT: self._first_delta_sent,
            EventKind.ATTEMPT_FAILED: self._attempt_failed,
            EventKind.CANCEL_SENT: self._happened_to_attempt,
            EventKind.FENCED: self._fence_settled,
            EventKind.FENCE_GIVEN_UP: self._fence_settled,
            EventKind.REPEAT_REFUSED: self._repeat_refused,
            EventKind.ENDED: self._ended,
        }

    def saw(self, transition: Transition) -> None:
        """An admitted request has moved."""
        event = transition.event
        if event.kind is EventKind.ADMITTED:
            self._admitted(transition)
            return
        traced, rule = self._open.get(event.request_id), self._rules.get(event.kind)
        if traced is not None and rule is not None:
            rule(traced, transition)

    def turned_away(self, turned_away: TurnedAway) -> None:
        """Nothing of it is worth a trace: it did nothing."""

    def attempt_headers(self, attempt_id: str) -> Sequence[tuple[str, str]]:
        """``traceparent`` of a running attempt."""
        span = self._attempts.get(attempt_id)
        if span is None:
            return ()
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, set_span_in_context(span, Context()))
        return tuple((name, value) for name, value in carrier.items() if name == "traceparent")

    def _admitted(self, transition: Transition) -> None:
        facts, event = transition.after, transition.event
        operation = operation_of(facts.api)
        self._ids.next_trace_id = int(transition.trace_id, 16)
        traceparent = event.detail.get("traceparent")
        span = self._tracer.start_span(
            f"{operation} {facts.model}".strip(),
            context=_PROPAGATOR.extract({"traceparent": str(traceparent)} if traceparent else {}, Context()),
            kind=SpanKind.SERVER,
            start_time=_nanoseconds(event),
            attributes={
                gen_ai.GEN_AI_OPERATION_NAME: operation,
                gen_ai.GEN_AI_PROVIDER_NAME: PROVIDER,
                gen_ai.GEN_AI_REQUEST_MODEL: facts.model,
                gen_ai.GEN_AI_REQUEST_STREAM: facts.stream,
                f"{PREFIX}request_id": facts.request_id,
                f"{PREFIX}route": facts.route,
                f"{PREFIX}api": facts.api,
            },
        )
        self._open[event.request_id] = _Traced(span)

    def _attempt_started(self, traced: _Traced, transition: Transition) -> None:
        event, number = transition.event, len(transition.after.attempts)
        if number > 1:
            _add(traced.request, "decision", event, {"decision": "repeat", "gate": "all", **event.detail})
        host, _, port = (event.replica or "").rpartition(":")
        span = self._tracer.start_span(
            f"attempt {number}",
            context=set_span_in_context(traced.request, Context()),
            kind=SpanKind.CLIENT,
            start_time=_nanoseconds(event),
            attributes={
                gen_ai.GEN_AI_OPERATION_NAME: operation_of(transition.after.api),
                gen_ai.GEN_AI_PROVIDER_NAME: PROVIDER,
                gen_ai.GEN_AI_REQUEST_MODEL: transition.after.model,
                server_attributes.SERVER_ADDRESS: host.strip("[]"),
                **({server_attributes.SERVER_PORT: int(port)} if port.isdigit() else {}),
                f"{PREFIX}request_id": event.request_id,
                f"{PREFIX}attempt_id": event.attempt_id or "",
                f"{PREFIX}attempt": number,
            },
        )
        if event.attempt_id is not None:
            self._attempts[event.attempt_id] = traced.attempts[event.attempt_id] = span

    def _happened_to_attempt(self, traced: _Traced, transition: Transition) -> None:
        span = traced.attempts.get(transition.event.attempt_id or "")
        if span is not None:
            _add(span, str(transition.event.kind), transition.event, transition.event.detail)

    def _first_delta_sent(self, traced: _Traced, transition: Transition) -> None:
        event = transition.event
        _add(traced.request, "first_delta", event, {"attempt_id": event.attempt_id})
        waited_s = max(0, event.at_ms - transition.after.admitted_at_ms) / 1000
        traced.request.set_attribute(gen_ai.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK, waited_s)
        self._happened_to_attempt(traced, transition)

    def _attempt_failed(self, traced: _Traced, transition: Transition) -> None:
        self._happened_to_attempt(traced, transition)
        span = traced.attempts.get(transition.event.attempt_id or "")
        if span is not None:
            detail = transition.event.detail
            span.set_attribute(error_attributes.ERROR_TYPE, str(detail.get("cause")))
            span.set_status(Status(StatusCode.ERROR, str(detail.get("evidence"))))

    def _fence_settled(self, traced: _Traced, transition: Transition) -> None:
        self._happened_to_attempt(traced, transition)
        self._end_attempt(traced, transition.event.attempt_id or "", transition.event)

    def _repeat_refused(self, traced: _Traced, transition: Transition) -> None:
        _add(traced.request, "decision", transition.event, {"decision": "no_repeat", **transition.event.detail})

    def _ended(self, traced: _Traced, transition: Transition) -> None:
        facts, event, span = transition.after, transition.event, traced.request
        error = facts.error_code or facts.reason or ""
        for attempt_id in list(traced.attempts):
            if facts.outcome == Outcome.INTERRUPTED:
                traced.attempts[attempt_id].set_attribute(error_attributes.ERROR_TYPE, facts.reason or "")
                traced.attempts[attempt_id].set_status(Status(StatusCode.ERROR, facts.reason))
            self._end_attempt(traced, attempt_id, event)
        span.set_attributes(
            {
                gen_ai.GEN_AI_USAGE_OUTPUT_TOKENS: facts.delivered_output_tokens,
                f"{PREFIX}outcome": facts.outcome or "",
                f"{PREFIX}reason": facts.reason or "",
                f"{PREFIX}attempts": len(facts.attempts),
                f"{PREFIX}partial_output": facts.first_delta_sent and facts.outcome != Outcome.COMPLETED,
            }
        )
        if facts.outcome in (Outcome.INTERRUPTED, Outcome.FAILED):
            span.set_attribute(error_attributes.ERROR_TYPE, error)
            span.set_status(Status(StatusCode.ERROR, error))
        _add(span, "ended", event, event.detail)
        span.end(_nanoseconds(event))
        self._open.pop(event.request_id, None)

    def _end_attempt(self, traced: _Traced, attempt_id: str, event: JournalEvent) -> None:
        span = traced.attempts.pop(attempt_id, None)
        self._attempts.pop(attempt_id, None)
        if span is not None:
            span.end(_nanoseconds(event))


def _add(span: Span, name: str, event: JournalEvent, detail: Detail) -> None:
    attributes = {f"{PREFIX}{key}": value for key, value in detail.items() if value is not None}
    span.add_event(name, attributes, timestamp=_nanoseconds(event))


def _nanoseconds(event: JournalEvent) -> int:
    return event.at_ms * 1_000_000
