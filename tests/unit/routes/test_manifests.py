"""What a pipeline checks before anything is applied."""

import pytest

from extproc.decision.policy import LeasePolicy, Policy
from extproc.routes import manifests
from extproc.routes.manifests import LintResult, lint

ROUTE = """
apiVersion: gateway.networking.k8s.io/v1
kind: {kind}
metadata:
  name: chat
  namespace: default
  annotations:
    {annotations}
"""


def route(annotations: str, kind: str = "HTTPRoute") -> str:
    return ROUTE.format(kind=kind, annotations=annotations)


def findings(text: str) -> list[str]:
    return [str(finding) for finding in lint(text).findings]


def test_a_policy_document_is_checked_as_one() -> None:
    assert lint("mode: observe") == LintResult(checked=("policy",), findings=())
    assert findings("mode: never") == ['policy: mode: "never" is not known; write one of enforce, observe, off']


def test_a_document_is_checked_against_its_default() -> None:
    base = Policy(lease=LeasePolicy(ttl_ms=60_000, cancel_timeout_ms=30_000))
    assert lint("lease: {ttl_ms: 20000}").findings == ()
    assert "exceeds" in str(lint("lease: {ttl_ms: 20000}", base=base).findings[0])


@pytest.mark.parametrize("kind", ["HTTPRoute", "GRPCRoute", "VirtualService"])
def test_annotations_of_routes_are_checked(kind: str) -> None:
    assert lint(route('deltafence.io/max-attempts: "2"', kind)) == LintResult(checked=(f"{kind} default/chat",), findings=())
    assert findings(route('deltafence.io/max-attempts: "0"', kind)) == [
        f"{kind} default/chat: deltafence.io/max-attempts: 0 is below 1; set 1 to never repeat"
    ]


def test_both_prefixes_are_checked_on_one_object() -> None:
    text = route('{other.io/x: y, deltafence.io/tools: maybe, gateway.envoyproxy.io/deltafence.lease-ttl-ms: "1000"}')
    assert [finding.removeprefix("HTTPRoute default/chat: ").partition("; ")[0] for finding in findings(text)] == [
        'deltafence.io/tools: "maybe" is not known',
        "gateway.envoyproxy.io/deltafence.lease-ttl-ms: lease.cancel_timeout_ms 2000 exceeds lease.ttl_ms 1000",
    ]


@pytest.mark.parametrize(("value", "seen"), [("2", "2"), ("off", "false"), ("yes", "true"), ("1e6", "1000000.0")])
def test_k8_01_an_unquoted_value_is_refused_as_the_api_refuses_it(value: str, seen: str) -> None:
    (finding,) = findings(route(f"deltafence.io/max-attempts: {value}"))
    assert finding.startswith(f"HTTPRoute default/chat: deltafence.io/max-attempts: {seen} is ")


def test_a_policy_on_an_object_that_is_no_route_has_no_effect_and_is_said_so() -> None:
    assert findings(route('deltafence.io/mode: "off"', "Gateway")) == [
        "Gateway default/chat: deltafence.io/mode: has no effect on objects of kind Gateway; "
        "put it on the route: HTTPRoute, GRPCRoute, VirtualService"
    ]
    assert "HTTPRoute, GRPCRoute" in findings(route("gateway.envoyproxy.io/deltafence.mode: enforce", "VirtualService"))[0]


def test_annotations_that_pods_carry_for_other_reasons_are_left_alone() -> None:
    assert findings(route("deltafence.io/model-revision: abc", "Pod")) == []


def test_a_policy_key_among_the_labels_is_a_mistake() -> None:
    text = route("{}").replace(
        "annotations:", "labels: {deltafence.io/max-attempts: '3', deltafence.io/replica: 'true'}\n  annotations:"
    )
    assert findings(text) == [
        "HTTPRoute default/chat: deltafence.io/max-attempts: is a label, which nobody reads; write it as an annotation"
    ]


@pytest.mark.parametrize("text", ["", " \n"])
def test_no_text_is_refused_since_what_should_have_written_it_may_have_failed(text: str) -> None:
    """`helm template ... | deltafence policy lint -` must not pass where helm failed."""
    assert findings(text) == ["input: document: is empty; look whether what should have written it failed"]


def test_lists_and_streams_are_unpacked() -> None:
    item = '{apiVersion: v1, kind: HTTPRoute, metadata: {name: a, annotations: {deltafence.io/mode: "x"}}}'
    pods = "apiVersion: v1\nkind: Pod\n---\napiVersion: v1\nkind: Pod\nmetadata: 3\n"
    text = f"---\n---\napiVersion: v1\nkind: List\nitems: [{item}, 5]\n---\n{pods}"
    assert lint(text).checked == ("HTTPRoute a",)
    assert len(lint(text).findings) == 1


def test_manifests_without_anything_of_ours_are_fine() -> None:
    assert lint("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n") == LintResult(checked=(), findings=())


def test_broken_manifests_are_one_finding() -> None:
    (finding,) = findings("apiVersion: v1\nkind: [\n")
    assert finding.startswith("manifests: document: not YAML")


def test_a_text_that_is_neither_is_judged_as_a_document() -> None:
    (finding,) = findings("mode: [")
    assert finding.startswith("policy: document: not YAML or JSON in line 1")


def test_a_text_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "TEXT_CHARACTERS_MAX", 10)
    assert findings("apiVersion: v1") == ["manifests: document: 14 characters of text; lint fewer objects at once"]
