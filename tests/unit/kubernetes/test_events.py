"""Events about objects."""

from datetime import UTC, datetime

from extproc.kubernetes.events import MESSAGE_CHARACTERS_MAX, events_path, warning_event

ROUTE = {
    "apiVersion": "gateway.networking.k8s.io/v1",
    "kind": "HTTPRoute",
    "metadata": {"name": "chat", "namespace": "llm", "uid": "u", "resourceVersion": "7"},
}
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def event(message: str = "no", **metadata: str) -> dict[str, object]:
    about = {**ROUTE, "metadata": {**ROUTE["metadata"], **metadata}}  # type: ignore[dict-item]
    return dict(warning_event(about, reason="PolicyRefused", message=message, now=NOW, instance="gateway-1"))


def test_an_event_names_its_object_and_says_why() -> None:
    assert events_path(ROUTE) == "/api/v1/namespaces/llm/events"
    made = event()
    assert made["involvedObject"] == {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "namespace": "llm",
        "name": "chat",
        "uid": "u",
        "resourceVersion": "7",
    }
    assert (made["type"], made["reason"], made["message"], made["count"]) == ("Warning", "PolicyRefused", "no", 1)
    assert made["firstTimestamp"] == made["lastTimestamp"] == "2026-11-30T12:00:00Z"


def test_many_processors_make_one_event_of_one_change() -> None:
    assert event()["metadata"] == event()["metadata"]
    assert event()["metadata"] != event(resourceVersion="8")["metadata"]
    assert event()["metadata"] != event("other")["metadata"]


def test_the_apis_limits_are_kept() -> None:
    made = event("x" * 5_000, name="n" * 253)
    assert len(str(made["message"])) == MESSAGE_CHARACTERS_MAX
    assert len(made["metadata"]["name"]) <= 253  # type: ignore[index]


def test_an_object_without_a_namespace_is_told_of_in_the_default_one() -> None:
    about = {"kind": "GatewayClass", "metadata": {"name": "a", "resourceVersion": "1"}}
    assert events_path(about) == "/api/v1/namespaces/default/events"
