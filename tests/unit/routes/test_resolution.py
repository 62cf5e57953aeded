"""One precedence, key by key; a refused source changes nothing; a repeated look-up costs nothing."""

from collections.abc import Mapping

import pytest

from extproc.decision.policy import DEFAULT_POLICY, Policy
from extproc.routes import resolution
from extproc.routes.document import read_layer
from extproc.routes.problems import PolicyError, Problem
from extproc.routes.resolution import BUILT_IN, EffectivePolicy, PolicyResolver
from extproc.routes.route_metadata import RouteObject
from extproc.routes.schema import LEAVES

MAX_ATTEMPTS = "on_upstream_failure.before_first_delta.max_attempts"


class AnnotationsOfOneRoute:
    """A stand-in for the Kubernetes watch."""

    def __init__(self, **annotations: str) -> None:
        self.revision = 1
        self.current = annotations
        self.asked: list[RouteObject] = []
        self.refused: tuple[Problem, ...] = ()

    def annotations(self, route_object: RouteObject) -> Mapping[str, str]:
        self.asked.append(route_object)
        return {f"deltafence.io/{key.replace('_', '-')}": value for key, value in self.current.items()}

    def problems(self, route_object: RouteObject) -> tuple[Problem, ...]:
        return self.refused


def metadata(*, annotations: Mapping[str, str] | None = None, policy: str | None = None) -> str:
    copied = " ".join(
        f'fields {{ key: "deltafence.{key}" value {{ string_value: "{value}" }} }}' for key, value in (annotations or {}).items()
    )
    named = "".join(
        f'fields {{ key: "{key}" value {{ string_value: "{value}" }} }} '
        for key, value in {"kind": "HTTPRoute", "namespace": "default", "name": "chat"}.items()
    )
    text = (
        'filter_metadata { key: "envoy-gateway" value { fields { key: "resources" value { list_value { values { struct_value { '
        f'{named} fields {{ key: "annotations" value {{ struct_value {{ {copied} }} }} }} }} }} }} }} }} }} }} '
    )
    if policy is not None:
        text += (
            f'filter_metadata {{ key: "deltafence" value {{ fields {{ key: "policy" value {{ string_value: "{policy}" }} }} }} }}'
        )
    return text


def test_without_sources_the_built_in_defaults_are_in_force() -> None:
    effective = PolicyResolver().resolve()
    assert effective == EffectivePolicy(policy=DEFAULT_POLICY, sources=dict.fromkeys(LEAVES, BUILT_IN))


def test_every_source_is_laid_over_the_ones_below_it_key_by_key() -> None:
    resolver = PolicyResolver(
        default=read_layer(
            "{on_upstream_failure: {before_first_delta: {max_attempts: 1}}, tools: ledger, mode: observe, "
            "lease: {ttl_ms: 20000}, retry_budget: {percent: 1}}",
            source="file /etc/deltafence/policy.yaml",
        ),
        route_annotations=AnnotationsOfOneRoute(max_attempts="3", mode="enforce", lease_ttl_ms="21000", retry_budget_percent="2"),
    )
    effective = resolver.resolve(
        route_metadata=metadata(
            annotations={"max-attempts": "4", "lease-ttl-ms": "22000", "retry-budget-percent": "3"},
            policy="{lease: {ttl_ms: 23000}, retry_budget: {percent: 4}}",
        ),
        initial_metadata='{"retry_budget": {"percent": 5}}',
    )
    assert effective.errors == ()
    assert {path: source for path, source in effective.sources.items() if source != BUILT_IN} == {
        "tools": "file /etc/deltafence/policy.yaml",
        "mode": "annotation deltafence.io/mode of HTTPRoute default/chat",
        MAX_ATTEMPTS: "annotation gateway.envoyproxy.io/deltafence.max-attempts of HTTPRoute default/chat",
        "lease.ttl_ms": "route metadata deltafence.policy",
        "retry_budget.percent": "initial metadata x-deltafence-policy",
    }
    policy = effective.policy
    assert (policy.tools, policy.mode, policy.max_attempts, policy.lease.ttl_ms, policy.retry_budget.percent) == (
        "ledger",
        "enforce",
        4,
        23_000,
        5,
    )
    assert effective.route_object == RouteObject(kind="HTTPRoute", namespace="default", name="chat")


def test_a_refused_source_leaves_what_lies_below_and_above_it() -> None:
    resolver = PolicyResolver(route_annotations=AnnotationsOfOneRoute(max_attempts="3"))
    effective = resolver.resolve(
        route_metadata=metadata(annotations={"max-attempts": "many", "tools": "ledger"}, policy="{lease: {ttl_ms: 1000}}"),
        initial_metadata="{deadlines: {idle_ms: 2000}}",
    )
    assert effective.policy.max_attempts == 3
    assert effective.policy.deadlines.idle_ms == 2_000
    assert effective.policy.tools == "refuse"
    assert [str(error).partition(";")[0] for error in effective.errors] == [
        'route metadata: gateway.envoyproxy.io/deltafence.max-attempts: "many" is not a whole number',
        "route metadata: lease.ttl_ms: lease.cancel_timeout_ms 2000 exceeds lease.ttl_ms 1000",
    ]


def test_what_the_watch_refused_is_reported_with_the_route() -> None:
    annotations = AnnotationsOfOneRoute(max_attempts="3")
    annotations.refused = (Problem(path="deltafence.io/max-attempts", problem="no", fix="mend it"),)
    effective = PolicyResolver(route_annotations=annotations).resolve(route_metadata=metadata())
    assert effective.policy.max_attempts == 3
    assert [str(error) for error in effective.errors] == ["HTTPRoute default/chat: deltafence.io/max-attempts: no; mend it"]


def test_unreadable_metadata_is_reported_and_the_rest_is_in_force() -> None:
    effective = PolicyResolver().resolve(route_metadata="{", initial_metadata="tools: ledger")
    assert effective.policy == Policy(tools=effective.policy.tools)
    assert effective.policy.tools == "ledger"
    assert [error.source for error in effective.errors] == ["route metadata"]


def test_a_bad_initial_metadata_keeps_the_default_file() -> None:
    resolver = PolicyResolver(default=read_layer("tools: ledger", source="file"))
    effective = resolver.resolve(initial_metadata="tools: maybe")
    assert effective.policy == resolver.default.policy
    assert [error.source for error in effective.errors] == ["initial metadata x-deltafence-policy"]


def test_a_default_file_that_contradicts_the_defaults_is_refused_at_start() -> None:
    with pytest.raises(PolicyError, match="exceeds"):
        PolicyResolver(default=read_layer("lease: {ttl_ms: 1000}", source="file"))


def test_the_same_inputs_are_resolved_once() -> None:
    annotations = AnnotationsOfOneRoute(max_attempts="3")
    resolver = PolicyResolver(route_annotations=annotations)
    text = metadata()
    assert resolver.resolve(route_metadata=text) is resolver.resolve(route_metadata=text)
    assert len(annotations.asked) == 1


def test_a_changed_annotation_is_seen_at_once() -> None:
    annotations = AnnotationsOfOneRoute(max_attempts="3")
    resolver = PolicyResolver(route_annotations=annotations)
    assert resolver.resolve(route_metadata=metadata()).policy.max_attempts == 3
    annotations.current, annotations.revision = {"max_attempts": "1"}, 2
    assert resolver.resolve(route_metadata=metadata()).policy.max_attempts == 1


def test_annotations_that_can_reach_no_route_are_an_error_where_they_are_read() -> None:
    generated = "/apis/networking.istio.io/v1/namespaces/a/virtual-service/a~b~istio-autogenerated-k8s-gateway~http~c"
    text = f'filter_metadata {{ key: "istio" value {{ fields {{ key: "config" value {{ string_value: "{generated}" }} }} }} }}'
    effective = PolicyResolver(route_annotations=AnnotationsOfOneRoute(max_attempts="3")).resolve(
        route_metadata=text, route_name="named"
    )
    assert effective.policy == DEFAULT_POLICY
    assert ["remove rules[].name" in str(error) for error in effective.errors] == [True]
    assert PolicyResolver().resolve(route_metadata=text, route_name="named").errors == ()


def test_one_generated_object_is_many_routes_objects() -> None:
    generated = "/apis/networking.istio.io/v1/namespaces/a/virtual-service/a~b~istio-autogenerated-k8s-gateway~http~c"
    text = f'filter_metadata {{ key: "istio" value {{ fields {{ key: "config" value {{ string_value: "{generated}" }} }} }} }}'
    resolver = PolicyResolver(route_annotations=AnnotationsOfOneRoute())
    found = [resolver.resolve(route_metadata=text, route_name=name).route_object for name in ("a.chat.0", "a.other.0")]
    assert [str(route_object) for route_object in found] == ["HTTPRoute a/chat", "HTTPRoute a/other"]


def test_without_kubernetes_a_named_object_says_nothing() -> None:
    assert PolicyResolver().resolve(route_metadata=metadata()).policy == DEFAULT_POLICY


def test_routes_that_were_seen_are_told_with_what_is_in_force_now() -> None:
    annotations = AnnotationsOfOneRoute(max_attempts="3")
    resolver = PolicyResolver(route_annotations=annotations)
    resolver.resolve(route_metadata=metadata(), route_name="default")
    resolver.resolve(initial_metadata="tools: ledger", route_name="default")
    annotations.current, annotations.revision = {"max_attempts": "1"}, 2
    seen = [(name, effective.policy.max_attempts, effective.policy.tools) for name, effective in resolver.seen()]
    assert seen == [("default", 1, "refuse"), ("default", 2, "ledger")]


def test_routes_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolution, "CACHED_ROUTES_MAX", 2)
    resolver = PolicyResolver()
    for name in "abca":
        resolver.resolve(route_name=name)
    assert [name for name, _ in resolver.seen()] == ["a", "b"]
