"""A processor's surroundings: replicas by EndpointSlice and by name, routes' annotations, and word to their authors."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from extproc.app import surroundings as module
from extproc.app.addresses import ReplicaAddress
from extproc.app.route_report import RouteReport
from extproc.app.surroundings import RouteWatch, ServiceReference, Surroundings, kept_running
from extproc.decision.policy import DEFAULT_POLICY
from extproc.kubernetes import reflection
from extproc.kubernetes.access import ApiAccess, OutsideClusterError
from extproc.replicas.roster import Roster
from extproc.routes.resolution import PolicyResolver
from tests.kubernetes_api.server import ApiServer, api_server

PODS = "/api/v1/pods"
SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
HTTP_ROUTES = "/apis/gateway.networking.k8s.io/v1/httproutes"
LIMIT_S = 10
METADATA_OF_CHAT = (
    'filter_metadata { key: "istio" value { fields { key: "config" value { string_value: '
    '"/apis/gateway.networking.k8s.io/v1/namespaces/llm/http-route/chat" } } } }'
)


@pytest.fixture
async def api(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    monkeypatch.setattr(reflection, "PAUSE_S", 0.01)
    monkeypatch.setattr(reflection, "BACKOFF_FIRST_S", 0.01)
    async with api_server() as server:
        for path in (HTTP_ROUTES, SLICES, PODS):
            server.objects[path] = {}
        yield server


def inside(api: ApiServer) -> Callable[[], ApiAccess]:
    return lambda: ApiAccess(url=api.url, namespace="llm")


def vllm_slice(**addresses: Mapping[str, bool]) -> dict[str, Any]:
    return {
        "metadata": {"name": "vllm-1", "namespace": "llm", "labels": {"kubernetes.io/service-name": "vllm"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8000}],
        "endpoints": [
            {"addresses": [address.replace("_", ".").lstrip(".")], "conditions": conditions}
            for address, conditions in addresses.items()
        ],
    }


def route(**annotations: str) -> dict[str, Any]:
    named = {f"deltafence.io/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "metadata": {"name": "chat", "namespace": "llm", "annotations": named},
    }


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.005)


def destinations(roster: Roster) -> list[str]:
    return [replica.destination for replica in roster.replicas]


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("vllm:8000", ServiceReference(namespace="", name="vllm", port="8000")),
        ("llm/vllm:http", ServiceReference(namespace="llm", name="vllm", port="http")),
    ],
)
def test_a_service_is_named_as_people_write_it(text: str, reference: ServiceReference) -> None:
    assert ServiceReference.parse(text) == reference


@pytest.mark.parametrize("text", ["vllm", ":8000", "vllm:", "a/b/c:1", "/:1"])
def test_what_names_no_service_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="SERVICE:PORT"):
        ServiceReference.parse(text)


async def test_a_roster_follows_its_services_slices(api: ApiServer) -> None:
    api.put(SLICES, vllm_slice(_10_0_0_1={}))
    roster = Roster([])
    around = Surroundings(service=ServiceReference.parse("vllm:http"), access=inside(api))
    async with around.watched(roster):
        assert destinations(roster) == ["10.0.0.1:8000"], "the first picture is there before the start is over"
        chosen = roster.choose()
        assert chosen is not None
        roster.acquire(chosen)
        api.put(SLICES, vllm_slice(_10_0_0_1={"ready": False, "terminating": True}, _10_0_0_2={"ready": True}))
        await until(lambda: "10.0.0.2:8000" in destinations(roster))
        assert {getattr(roster.choose(), "destination", None) for _ in range(3)} == {"10.0.0.2:8000"}
        assert roster.running("10.0.0.1:8000") == 1, "a running stream on a pod that terminates stays"
        api.delete(SLICES, "llm", "vllm-1")
        await until(lambda: destinations(roster) == [])


async def test_pods_say_what_they_serve_and_when_they_ended(api: ApiServer) -> None:
    found = vllm_slice(_10_0_0_1={}, _10_0_0_2={})
    for number, endpoint in enumerate(found["endpoints"]):
        endpoint["targetRef"] = {"uid": f"uid-llm/vllm-{number}"}
    api.put(SLICES, found)
    pod = {"name": "vllm-0", "namespace": "llm", "labels": {"deltafence.io/replica": "", "deltafence.io/revision": "7"}}
    api.put(PODS, {"metadata": pod})
    roster = Roster([])
    ended: list[str] = []
    around = Surroundings(service=ServiceReference.parse("vllm:http"), access=inside(api))
    async with around.watched(roster, lambda replica: ended.append(replica.destination)):
        await until(lambda: [replica.declared.identity.key for replica in roster.replicas] == ['{"revision":"7"}', ""])
        terminated = {"containerStatuses": [{"state": {"terminated": {"exitCode": 0}}}]}
        api.put(PODS, {"metadata": {**pod, "deletionTimestamp": "2026-11-30T00:00:00Z"}, "status": terminated})
        await until(lambda: ended == ["10.0.0.1:8000"])


async def test_an_annotation_is_in_force_with_the_next_request_and_for_no_other_route(api: ApiServer) -> None:
    watch = RouteWatch(DEFAULT_POLICY)
    resolver = PolicyResolver(route_annotations=watch.annotations)
    api.put(HTTP_ROUTES, route())
    async with Surroundings(routes=watch, access=inside(api)).watched(Roster([])):
        api.put(HTTP_ROUTES, route(max_attempts="3"))
        await until(lambda: resolver.resolve(route_metadata=METADATA_OF_CHAT).policy.max_attempts == 3)
        other = METADATA_OF_CHAT.replace("http-route/chat", "http-route/other")
        assert resolver.resolve(route_metadata=other).policy == DEFAULT_POLICY


async def test_routes_of_one_namespace_are_watched_without_a_look_at_the_others(api: ApiServer) -> None:
    """As an account that may list them there only needs it."""
    watch = RouteWatch(DEFAULT_POLICY, namespace="llm")
    elsewhere = route(max_attempts="5")
    api.put(HTTP_ROUTES, {**elsewhere, "metadata": {**elsewhere["metadata"], "namespace": "other"}})
    api.put(HTTP_ROUTES, route(max_attempts="3"))
    async with Surroundings(routes=watch, access=inside(api)).watched(Roster([])):
        await until(lambda: watch.annotations.objects)
        assert [str(each) for each in watch.annotations.objects] == ["HTTPRoute llm/chat"]
    asked = [request for request in api.requests if "routes" in request or "virtualservices" in request]
    assert asked
    assert all("/namespaces/llm/" in request for request in asked)


async def test_a_refused_annotation_keeps_the_last_good_one_and_its_author_is_told(api: ApiServer) -> None:
    watch = RouteWatch(DEFAULT_POLICY)
    resolver = PolicyResolver(route_annotations=watch.annotations)
    report = RouteReport(resolver, watch)
    api.put(HTTP_ROUTES, route(max_attempts="3"))
    async with Surroundings(routes=watch, access=inside(api)).watched(Roster([])):
        api.put(HTTP_ROUTES, route(max_attempts="many"))
        await until(lambda: api.created)
        assert resolver.resolve(route_metadata=METADATA_OF_CHAT, route_name="chat-rule").policy.max_attempts == 3
        (event,) = api.created
        assert (event["reason"], event["involvedObject"]["name"]) == ("PolicyRefused", "chat")
        assert event["message"].startswith('deltafence.io/max-attempts: "many" is not a whole number')
        document = report.document()
        (annotated,) = document["objects"]
        assert annotated["object"] == "HTTPRoute llm/chat"
        assert annotated["annotations_in_force"] == {"deltafence.io/max-attempts": "3"}
        assert annotated["policy"]["on_upstream_failure"]["before_first_delta"]["max_attempts"] == 3
        assert annotated["refused"][0].startswith("deltafence.io/max-attempts: ")
        (seen,) = document["routes"]
        assert (seen["name"], seen["object"]) == ("chat-rule", "HTTPRoute llm/chat")
        assert seen["sources"]["on_upstream_failure.before_first_delta.max_attempts"] == (
            "annotation deltafence.io/max-attempts of HTTPRoute llm/chat"
        )
        standings = {watched["collection"]: watched["standing"] for watched in document["watches"]}
        assert standings == {
            "httproutes.gateway.networking.k8s.io in all namespaces": "current",
            "grpcroutes.gateway.networking.k8s.io in all namespaces": "absent",
            "virtualservices.networking.istio.io in all namespaces": "absent",
        }


async def test_an_event_that_is_there_already_or_not_allowed_is_no_trouble(api: ApiServer) -> None:
    watch = RouteWatch(DEFAULT_POLICY)
    api.put(HTTP_ROUTES, route(tools="maybe"))
    async with Surroundings(routes=watch, access=inside(api)).watched(Roster([])):
        await until(lambda: len(api.created) == 1)
        known = api.created[0]
        other = RouteWatch(DEFAULT_POLICY)
        async with Surroundings(routes=other, access=inside(api)).watched(Roster([])):
            await until(lambda: sum(request.startswith("POST") for request in api.requests) == 2)
        assert api.created == [known]
        api.forbidden_posts = True
        api.put(HTTP_ROUTES, route(tools="perhaps"))
        await until(lambda: sum(request.startswith("POST") for request in api.requests) == 3)
        api.forbidden_posts = False
        api.put(HTTP_ROUTES, route(tools="never"))
        await until(lambda: len(api.created) == 2)


async def test_refusals_beyond_the_queue_are_only_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVENTS_WAITING_MAX", 2)
    watch = RouteWatch(DEFAULT_POLICY)
    for number in range(5):
        found = {**route(tools=f"word{number}"), "kind": "HTTPRoute"}
        watch.annotations.become("HTTPRoute", {("llm", "chat"): found})  # type: ignore[dict-item]
    assert watch._refusals.qsize() == 2


async def test_names_are_looked_up_without_kubernetes() -> None:
    roster = Roster([])
    around = Surroundings(origins=(ReplicaAddress.parse("http://127.0.0.1:8001"), ReplicaAddress.parse("http://127.0.0.1:8002")))
    async with around.watched(roster):
        assert destinations(roster) == ["127.0.0.1:8001", "127.0.0.1:8002"]
        assert RouteReport(PolicyResolver(), None).document()["watches"] == []


async def test_outside_a_cluster_a_service_can_not_be_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(OutsideClusterError):
        async with Surroundings(service=ServiceReference.parse("vllm:http")).watched(Roster([])):
            pass


async def test_a_start_does_not_wait_for_ever(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PICTURE_S", 0.01)
    api.status = 500
    async with Surroundings(service=ServiceReference.parse("vllm:http"), access=inside(api)).watched(Roster([])) as entered:
        assert entered is None


async def test_a_job_that_breaks_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESTART_AFTER_S", 0)
    runs = []

    async def job() -> None:
        runs.append(1)
        if len(runs) == 3:
            raise asyncio.CancelledError
        if len(runs) == 1:
            raise RuntimeError("a fault of ours")

    with pytest.raises(asyncio.CancelledError):
        await kept_running("job", job)
    assert len(runs) == 3
