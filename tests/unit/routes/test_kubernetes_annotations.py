"""Annotations from a watch: the last good ones stay, a refusal is told once, other objects are untouched (CASES K8)."""

from collections.abc import Mapping
from typing import Any

from extproc.decision.policy import DEFAULT_POLICY, LeasePolicy, Policy
from extproc.routes.kubernetes_annotations import KubernetesAnnotations
from extproc.routes.problems import Problem
from extproc.routes.resolution import PolicyResolver
from extproc.routes.route_metadata import RouteObject

CHAT = RouteObject(kind="HTTPRoute", namespace="default", name="chat")
OTHER = RouteObject(kind="HTTPRoute", namespace="default", name="other")


class Source(KubernetesAnnotations):
    """With a note of every refusal."""

    def __init__(self, base: Policy = DEFAULT_POLICY) -> None:
        self.refusals: list[tuple[str, str]] = []
        super().__init__(base, self._note)

    def _note(self, found: Mapping[str, Any], problems: tuple[Problem, ...]) -> None:
        self.refusals.append((found["metadata"]["name"], str(problems[0])))

    def show(self, kind: str = "HTTPRoute", **annotations: Mapping[str, str] | None) -> None:
        """A picture of objects in ``default`` with ``deltafence.io/`` annotations, and one of somebody else's."""
        self.become(
            kind,
            {
                ("default", name): {
                    "metadata": {
                        "name": name,
                        "annotations": None
                        if own is None
                        else {"other.io/x": "y", **{f"deltafence.io/{key}": value for key, value in own.items()}},
                    }
                }
                for name, own in annotations.items()
            },
        )


def test_good_annotations_are_answered() -> None:
    source = Source()
    source.show(chat={"max-attempts": "3"}, other={}, third=None)
    assert source.annotations(CHAT) == {"deltafence.io/max-attempts": "3"}
    assert source.annotations(OTHER) == {}
    assert list(source.objects) == [CHAT]


def test_a_bad_change_keeps_the_last_good_one_and_is_told_once() -> None:
    source = Source()
    source.show(chat={"max-attempts": "3"})
    for _ in range(3):
        source.show(chat={"max-attempts": "many"})
    assert source.annotations(CHAT) == {"deltafence.io/max-attempts": "3"}
    assert [name for name, _ in source.refusals] == ["chat"]
    assert source.refusals[0][1].startswith("deltafence.io/max-attempts: ")
    assert source.objects[CHAT].problems
    source.show(chat={"max-attempts": "lots"})
    assert len(source.refusals) == 2
    source.show(chat={"max-attempts": "1"})
    assert source.annotations(CHAT) == {"deltafence.io/max-attempts": "1"}
    assert source.objects[CHAT].problems == ()


def test_an_object_that_was_never_good_has_nothing() -> None:
    source = Source()
    source.show(chat={"tools": "maybe"})
    assert source.annotations(CHAT) == {}


def test_a_contradiction_with_the_default_file_is_refused() -> None:
    source = Source(Policy(lease=LeasePolicy(ttl_ms=60_000, cancel_timeout_ms=30_000)))
    source.show(chat={"lease-ttl-ms": "20000"})
    assert "exceeds" in source.refusals[0][1]


def test_what_is_removed_is_gone() -> None:
    source = Source()
    source.show(chat={"max-attempts": "3"}, other={"max-attempts": "2"})
    source.show(chat={"max-attempts": "many"}, other={"max-attempts": "2"})
    source.show(chat={}, other={"max-attempts": "2"})
    assert source.annotations(CHAT) == {}
    source.show()
    assert source.annotations(OTHER) == {}


def test_kinds_do_not_disturb_each_other() -> None:
    source = Source()
    source.show(chat={"max-attempts": "3"})
    source.show("GRPCRoute", chat={"max-attempts": "1"})
    assert source.annotations(CHAT) == {"deltafence.io/max-attempts": "3"}
    assert source.annotations(RouteObject(kind="GRPCRoute", namespace="default", name="chat")) == {
        "deltafence.io/max-attempts": "1"
    }


def test_the_revision_moves_only_with_a_change_of_ours() -> None:
    source = Source()
    source.show(chat={"max-attempts": "3"})
    revision = source.revision
    source.show(chat={"max-attempts": "3"}, other={})
    assert source.revision == revision
    source.show(chat={"max-attempts": "2"})
    assert source.revision > revision


def test_a_resolver_sees_a_change_with_the_next_request() -> None:
    source = Source()
    resolver = PolicyResolver(route_annotations=source)
    metadata = (
        'filter_metadata { key: "istio" value { fields { key: "config" value { string_value: '
        '"/apis/gateway.networking.k8s.io/v1/namespaces/default/http-route/chat" } } } }'
    )
    assert resolver.resolve(route_metadata=metadata).policy.max_attempts == 2
    source.show(chat={"max-attempts": "4"}, other={"max-attempts": "1"})
    assert resolver.resolve(route_metadata=metadata).policy.max_attempts == 4
    source.show(chat={"max-attempts": "0"}, other={"max-attempts": "1"})
    effective = resolver.resolve(route_metadata=metadata)
    assert effective.policy.max_attempts == 4
    assert str(effective.errors[0]).startswith("HTTPRoute default/chat: deltafence.io/max-attempts: 0 is below 1")
