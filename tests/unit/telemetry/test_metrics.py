"""What each story of a request adds to the metrics."""

from prometheus_client import generate_latest

from extproc.contract.errors import ErrorCode
from extproc.decision.verdicts import Verdict
from extproc.journal.records import EventKind
from extproc.routes.resolution import INITIAL_METADATA, PolicyResolver
from extproc.telemetry.metrics import RequestMetrics
from extproc.telemetry.names import VALUES_MAX
from extproc.telemetry.policies import PolicyMetrics
from extproc.telemetry.verdicts import VerdictMetrics
from extproc.telemetry.witness import Witness
from tests.unit.telemetry.events import INTERRUPTED, REFUSED, REPEATED, admitted, happened

GEN_AI = {"gen_ai_operation_name": "chat", "gen_ai_request_model": "llama"}


def test_repeat_that_helped_is_counted_by_its_gates_its_fence_and_what_it_cost(scrape, told) -> None:
    told(Witness([RequestMetrics(scrape.meters)]), REPEATED)
    ended = {
        "mode": "enforce",
        "api": "chat",
        "route": "chat",
        "model": "llama",
        "outcome": "completed",
        "code": "none",
        "reason": "finished",
    }
    assert scrape.value("deltafence_requests_total", **ended) == 1
    assert scrape.value("deltafence_attempts_total", model="llama", repeat="true") == 1
    assert scrape.value("deltafence_repeats_total", model="llama", decision="passed", gate="all") == 1
    assert scrape.value("deltafence_attempt_failures_total", model="llama", cause="replica_gone", boundary="before") == 1
    assert scrape.value("deltafence_fences_total", proof="connection_refused", cause="replica_gone") == 1
    assert scrape.value("deltafence_fence_duration_seconds_sum", proof="connection_refused") == 0.25
    assert scrape.value("gen_ai_server_time_to_first_token_seconds_sum", **GEN_AI) == 0.5
    assert scrape.value("gen_ai_server_request_duration_seconds_sum", **GEN_AI) == 2.0
    assert scrape.value("deltafence_delivered_tokens_total", model="llama", outcome="completed") == 37
    assert scrape.value("deltafence_retry_budget_repeats", model="llama") == 8.0


def test_interrupted_stream_is_a_failure_after_the_boundary(scrape, told) -> None:
    told(Witness([RequestMetrics(scrape.meters)]), INTERRUPTED)
    assert scrape.value("deltafence_attempt_failures_total", model="llama", cause="replica_gone", boundary="after") == 1
    assert scrape.value("deltafence_delivered_tokens_total", model="llama", outcome="interrupted") == 12
    error = {"error_type": "upstream_decode_interrupted"}
    assert scrape.value("gen_ai_server_request_duration_seconds_count", **GEN_AI, **error) == 1


def test_refused_repeat_names_its_gate(scrape, told) -> None:
    told(Witness([RequestMetrics(scrape.meters)]), REFUSED)
    assert scrape.value("deltafence_repeats_total", model="llama", decision="refused", gate="source_attempt_fenced") == 1
    assert scrape.value("deltafence_fences_total", proof="none", cause="uncertain") == 1


def test_active_requests_are_counted_in_the_phase_in_which_they_are(scrape, told) -> None:
    witness = Witness([RequestMetrics(scrape.meters)])
    told(witness, REPEATED[:4])
    told(witness, [admitted(request="req_2")])
    assert scrape.value("deltafence_requests_active", phase="fencing") == 1
    assert scrape.value("deltafence_requests_active", phase="admitted") == 1
    told(witness, [*REPEATED[4:], happened(EventKind.ENDED, request="req_2", outcome="cancelled", reason="client_gone")])
    phases = ("admitted", "prefill", "fencing", "decode")
    assert [scrape.value("deltafence_requests_active", phase=phase) for phase in phases] == [0, 0, 0, 0]


def test_invented_model_names_share_one_series_beyond_the_bound(scrape, told) -> None:
    witness = Witness([RequestMetrics(scrape.meters)])
    for number in range(VALUES_MAX + 40):
        request = f"req_{number}"
        told(witness, [admitted(request=request, model=f"m{number}"), happened(EventKind.ATTEMPT_STARTED, request=request)])
    samples = [sample for family in scrape.registry.collect() for sample in family.samples]
    models = {sample.labels["model"] for sample in samples if sample.name == "deltafence_attempts_total"}
    assert len(models) == VALUES_MAX + 1
    assert scrape.value("deltafence_attempts_total", model="other", repeat="false") == 40


def test_a_name_that_no_encoder_takes_does_not_end_the_metrics_page(scrape, told) -> None:
    witness = Witness([RequestMetrics(scrape.meters)])
    told(witness, [admitted(model="a\ud83d"), happened(EventKind.ATTEMPT_STARTED)])
    assert b'deltafence_attempts_total{model="a?"' in generate_latest(scrape.registry)


def test_request_that_was_turned_away_is_counted(scrape) -> None:
    witness = Witness([RequestMetrics(scrape.meters)])
    witness.turned_away(request_id="req_1", api="chat", code=ErrorCode.REQUEST_TOO_LARGE)
    assert scrape.value("deltafence_requests_turned_away_total", api="chat", code="request_too_large") == 1


def test_only_the_verdict_of_now_is_1(scrape) -> None:
    verdicts = VerdictMetrics(scrape.meters)
    for verdict in (Verdict.IDLE, Verdict.BUSY, Verdict.BUSY, Verdict.HUNG):
        verdicts.changed("10.0.0.1:8000", verdict)
    shown = {verdict: scrape.value("deltafence_replica_verdict", replica="10.0.0.1:8000", verdict=verdict) for verdict in Verdict}
    assert {verdict: value for verdict, value in shown.items() if value is not None} == {"idle": 0, "busy": 0, "hung": 1}
    assert scrape.value("deltafence_replica_verdict_changes_total", verdict="busy") == 1
    verdicts.forgotten("10.0.0.1:8000")
    assert scrape.value("deltafence_replica_verdict", replica="10.0.0.1:8000", verdict="hung") == 0


def test_refused_policy_source_is_counted_once_and_shown_while_it_lasts(scrape) -> None:
    resolver, policies = PolicyResolver(), PolicyMetrics(scrape.meters)
    refused = resolver.resolve(initial_metadata="mode: sideways")
    for effective in (refused, refused, resolver.resolve(initial_metadata="mode: sideways")):
        policies.used("chat", effective)
    assert scrape.value("deltafence_policy_errors_total", source=INITIAL_METADATA) == 1
    assert scrape.value("deltafence_policy_refused_sources", route="chat") == 1
    policies.used("chat", resolver.resolve(initial_metadata="mode: enforce"))
    assert scrape.value("deltafence_policy_refused_sources", route="chat") == 0


def test_refused_annotations_are_counted_once_and_shown_until_they_are_mended_or_gone(scrape) -> None:
    policies = PolicyMetrics(scrape.meters)
    chat, bulk = "HTTPRoute llm/chat", "HTTPRoute llm/bulk"
    for problems in ({chat: 2, bulk: 0}, {chat: 2, bulk: 1}, {chat: 0, bulk: 1}):
        policies.objects_judged(problems)
    assert scrape.value("deltafence_policy_errors_total", source="annotations") == 3
    assert scrape.value("deltafence_policy_refused_sources", route=chat) == 0
    assert scrape.value("deltafence_policy_refused_sources", route=bulk) == 1
    policies.objects_judged({})
    assert scrape.value("deltafence_policy_refused_sources", route=bulk) == 0
