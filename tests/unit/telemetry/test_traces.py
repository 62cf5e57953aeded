"""One trace per request, a span per attempt; the client's trace goes on through us to the replica."""

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, StatusCode

from extproc.telemetry.traces import RequestIds, RequestTraces
from extproc.telemetry.witness import Transition, TurnedAway, Witness
from tests.unit.telemetry.events import BEGIN_MS, FIRST, INTERRUPTED, REFUSED, REPEATED, REQUEST, SECOND, admitted

CLIENT_TRACE, CLIENT_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Traced:
    def __init__(self, **options: object) -> None:
        ids = RequestIds()
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(id_generator=ids, shutdown_on_exit=False, **options)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        traces = RequestTraces(self.provider, ids)
        self.trace_ids: set[str] = set()
        self.witness = Witness([traces, self], traces.attempt_headers)

    def saw(self, transition: Transition) -> None:
        self.trace_ids.add(transition.trace_id)

    def turned_away(self, turned_away: TurnedAway) -> None:
        raise AssertionError

    def tell(self, events) -> dict[str, ReadableSpan]:
        for event in events:
            self.witness.saw(event)
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def traced() -> Iterator[Traced]:
    traced = Traced()
    yield traced
    traced.provider.shutdown()


def test_request_is_one_trace_with_a_span_for_each_attempt(traced: Traced) -> None:
    spans = traced.tell(REPEATED)
    request, first, second = spans["chat llama"], spans["attempt 1"], spans["attempt 2"]
    assert {format(span.context.trace_id, "032x") for span in spans.values()} == traced.trace_ids
    assert (request.kind, first.kind) == (SpanKind.SERVER, SpanKind.CLIENT)
    assert request.parent is None
    assert first.parent == second.parent == request.context
    assert (first.start_time, first.end_time) == ((BEGIN_MS + 1) * 10**6, (BEGIN_MS + 350) * 10**6)
    assert second.end_time == request.end_time == (BEGIN_MS + 2_000) * 10**6


def test_spans_carry_the_conventions_and_our_ids(traced: Traced) -> None:
    spans = traced.tell(REPEATED)
    request, first = spans["chat llama"].attributes, spans["attempt 1"].attributes
    assert request["gen_ai.operation.name"] == "chat"
    assert request["gen_ai.request.model"] == "llama"
    assert request["gen_ai.usage.output_tokens"] == 37
    assert request["gen_ai.response.time_to_first_chunk"] == 0.5
    assert (request["deltafence.request_id"], request["deltafence.outcome"]) == (REQUEST, "completed")
    assert (first["server.address"], first["server.port"]) == ("10.0.0.1", 8000)
    assert (first["deltafence.attempt_id"], first["error.type"]) == (FIRST, "replica_gone")


def test_failure_fence_decision_and_first_delta_are_events_with_their_evidence(traced: Traced) -> None:
    spans = traced.tell(REPEATED)
    first = {event.name: event for event in spans["attempt 1"].events}
    request = {event.name: event for event in spans["chat llama"].events}
    assert list(first) == ["response_started", "attempt_failed", "fenced"]
    assert first["attempt_failed"].attributes["deltafence.evidence"] == "closed by the peer"
    assert first["fenced"].attributes["deltafence.proof"] == "connection_refused"
    assert list(request) == ["decision", "first_delta", "ended"]
    assert dict(request["decision"].attributes) == {
        "deltafence.decision": "repeat",
        "deltafence.gate": "all",
        "deltafence.number": 2,
        "deltafence.retry_budget": 8.0,
    }
    assert request["first_delta"].timestamp == (BEGIN_MS + 500) * 10**6


def test_refused_repeat_is_a_decision_with_its_gate(traced: Traced) -> None:
    spans = traced.tell(REFUSED)
    decision = next(event for event in spans["chat llama"].events if event.name == "decision")
    assert decision.attributes["deltafence.gate"] == "source_attempt_fenced"
    assert spans["chat llama"].status.status_code is StatusCode.ERROR
    assert spans["chat llama"].attributes["error.type"] == "source_attempt_not_fenced"


def test_interrupted_attempt_and_request_are_errors_and_all_spans_end(traced: Traced) -> None:
    spans = traced.tell(INTERRUPTED)
    assert set(spans) == {"chat llama", "attempt 1"}
    assert {span.status.status_code for span in spans.values()} == {StatusCode.ERROR}
    assert spans["attempt 1"].attributes["error.type"] == "replica_gone"
    assert spans["chat llama"].attributes["deltafence.partial_output"] is True


def test_clients_trace_goes_on_through_the_request_to_each_attempts_headers(traced: Traced) -> None:
    traced.tell([admitted(traceparent=f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-01"), REPEATED[1]])
    ((name, value),) = traced.witness.attempt_headers(FIRST)
    traced.tell(REPEATED[2:])
    spans = {span.name: span for span in traced.exporter.get_finished_spans()}

    assert format(spans["chat llama"].parent.span_id, "016x") == CLIENT_SPAN
    assert name == "traceparent"
    assert value == f"00-{CLIENT_TRACE}-{spans['attempt 1'].context.span_id:016x}-01"
    assert traced.witness.attempt_headers(SECOND) == ()


def test_what_is_not_sampled_tells_the_replica_so() -> None:
    traced = Traced(sampler=ParentBased(ALWAYS_OFF))
    traced.tell(REPEATED[:2])
    ((_, value),) = traced.witness.attempt_headers(FIRST)
    traced.tell(REPEATED[2:])
    _, trace_id, _, flags = value.split("-")
    assert trace_id in traced.trace_ids
    assert int(flags, 16) & 1 == 0  # W3C Trace Context section 3.2.2.5.1: the sampled flag
    assert traced.exporter.get_finished_spans() == ()
    traced.provider.shutdown()
