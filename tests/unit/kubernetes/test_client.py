"""Requests to the API: pages, watches, and every way in which they fail."""

from contextlib import aclosing
from pathlib import Path

import pytest

from extproc.kubernetes.access import ApiAccess
from extproc.kubernetes.client import AbsentError, ApiClient, ApiError, ExistsError, ExpiredError, ForbiddenError
from extproc.kubernetes.resources import Collection, endpoint_slices, route_collections
from tests.kubernetes_api.server import ApiServer

ROUTES, _, _ = route_collections("default")
PATH = "/apis/gateway.networking.k8s.io/v1/httproutes"


def route(name: str, namespace: str = "default", **metadata: object) -> dict[str, object]:
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": name, "namespace": namespace, **metadata},
    }


async def changes(client: ApiClient, collection: Collection, version: str, count: int) -> list[tuple[str, str]]:
    """The first changes of a watch, bookmarks left out."""
    seen = []
    async with aclosing(client.watch(collection, version)) as events:
        async for kind, found in events:
            if kind != "BOOKMARK":
                seen.append((kind, found["metadata"]["name"]))
            if len(seen) == count:
                break
    return seen


def test_paths_are_the_apis() -> None:
    assert ROUTES.path == "/apis/gateway.networking.k8s.io/v1/namespaces/default/httproutes"
    assert [collection.path for collection in route_collections()] == [
        PATH,
        "/apis/gateway.networking.k8s.io/v1/grpcroutes",
        "/apis/networking.istio.io/v1/virtualservices",
    ]
    assert Collection(kind="Pod", group="", version="v1", plural="pods", namespace="a").path == "/api/v1/namespaces/a/pods"
    assert str(ROUTES) == "httproutes.gateway.networking.k8s.io in default"
    assert str(Collection(kind="Pod", group="", version="v1", plural="pods")) == "pods in all namespaces"


async def test_a_list_is_read_to_its_last_page(api: ApiServer, client: ApiClient) -> None:
    api.page = 2
    for number in range(5):
        api.put(PATH, route(f"r{number}"))
    api.put(PATH, route("elsewhere", "other"))
    objects, version = await client.list(ROUTES)
    assert [found["metadata"]["name"] for found in objects] == [f"r{number}" for number in range(5)]
    assert {found["kind"] for found in objects} == {"HTTPRoute"}, "items of a list carry no kind of their own"
    assert version == str(api.version)
    assert len(api.requests) == 3


async def test_labels_select(api: ApiServer, client: ApiClient) -> None:
    path = "/apis/discovery.k8s.io/v1/endpointslices"
    for service in ("vllm", "other"):
        labels = {"kubernetes.io/service-name": service}
        api.put(path, {"metadata": {"name": service, "namespace": "llm", "labels": labels}})
    objects, _ = await client.list(endpoint_slices("llm", "vllm"))
    assert [found["metadata"]["name"] for found in objects] == ["vllm"]


async def test_a_watch_tells_what_changed_since_its_version(api: ApiServer, client: ApiClient) -> None:
    api.put(PATH, route("old"))
    _, version = await client.list(ROUTES)
    api.put(PATH, route("new"))
    api.put(PATH, route("old"))
    api.put(PATH, route("elsewhere", "other"))
    api.delete(PATH, "default", "old")
    assert await changes(client, ROUTES, version, 3) == [("ADDED", "new"), ("MODIFIED", "old"), ("DELETED", "old")]


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, ForbiddenError), (403, ForbiddenError), (404, AbsentError), (410, ExpiredError), (500, ApiError), (302, ApiError)],
)
async def test_a_refusal_is_told_with_the_servers_message(
    api: ApiServer, client: ApiClient, status: int, error: type[ApiError]
) -> None:
    api.status, api.message = status, 'User "x" cannot list resource "httproutes"'
    with pytest.raises(error, match='cannot list resource "httproutes"'):
        await client.list(ROUTES)


async def test_a_missing_definition_is_told_apart(client: ApiClient) -> None:
    with pytest.raises(AbsentError):
        await client.list(ROUTES)


async def test_a_version_that_is_forgotten_is_told_apart(api: ApiServer, client: ApiClient) -> None:
    api.put(PATH, route("a"))
    api.forget()
    with pytest.raises(ExpiredError):
        await changes(client, ROUTES, "1", 1)
    api.raw_watch = [b'{"type":"ERROR","object":{"kind":"Status","reason":"Expired","code":410,"message":"too old"}}\n']
    with pytest.raises(ExpiredError, match="too old"):
        await changes(client, ROUTES, str(api.version), 1)


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b"[]\n",
        b'{"type":"ADDED"}\n',
        b'{"type":"ADDED","object":{"metadata":{"resourceVersion":"1"}}}\n',
        b'{"type":"ADDED","object":{"metadata":{"name":"a"}}}\n',
        b'{"type":"ERROR","object":"x"}\n',
        b'{"type":"ERROR","object":{"reason":"InternalError","code":500,"message":"internal"}}\n',
    ],
)
async def test_an_event_that_makes_no_sense_ends_the_watch(api: ApiServer, client: ApiClient, line: bytes) -> None:
    api.put(PATH, route("a"))
    api.raw_watch = [line]
    with pytest.raises(ApiError):
        await changes(client, ROUTES, str(api.version), 1)


async def test_events_may_be_torn_and_joined_anywhere(api: ApiServer, client: ApiClient) -> None:
    api.put(PATH, route("a"))
    event = b'{"type":"ADDED","object":{"metadata":{"name":"%s","resourceVersion":"1"}}}\n'
    text = b"\n" + event % b"x" + event % b"y" + event % b"z" + b'{"type":"ADDED","obj'
    api.raw_watch = [text[:30], text[30:100], text[100:]]
    assert await changes(client, ROUTES, str(api.version), 4) == [("ADDED", "x"), ("ADDED", "y"), ("ADDED", "z")]


async def test_an_event_without_end_is_cut_off(api: ApiServer, client: ApiClient) -> None:
    api.put(PATH, route("a"))
    api.raw_watch = [b"x" * (1 << 20)] * 6
    with pytest.raises(ApiError, match="LineTooLong"):
        await changes(client, ROUTES, str(api.version), 1)


@pytest.mark.parametrize(
    "answer", ["not json", '{"items": 5}', '{"items": [{"metadata": {}}], "metadata": {"resourceVersion": "1"}}']
)
async def test_a_list_that_makes_no_sense_is_an_error(api: ApiServer, client: ApiClient, answer: str) -> None:
    api.raw_answer = answer
    with pytest.raises(ApiError):
        await client.list(ROUTES)


async def test_a_refusal_without_a_status_object_is_told_as_it_is(api: ApiServer, client: ApiClient) -> None:
    api.raw_refusal = "<html>bad gateway</html>"
    api.status = 502
    with pytest.raises(ApiError, match="502 <html>bad gateway"):
        await client.list(ROUTES)


async def test_a_server_that_is_away_is_an_error() -> None:
    async with ApiClient(ApiAccess(url="http://127.0.0.1:1", namespace="")) as client:
        with pytest.raises(ApiError, match="Connect"):
            await client.list(ROUTES)


async def test_a_token_that_can_not_be_read_is_an_error(tmp_path: Path) -> None:
    async with ApiClient(ApiAccess(url="http://127.0.0.1:1", namespace="", token_file=tmp_path / "absent")) as client:
        with pytest.raises(ApiError, match="absent"):
            await client.list(ROUTES)


async def test_the_accounts_token_is_shown(api: ApiServer, tmp_path: Path) -> None:
    api.token = "secret"
    api.put(PATH, route("a"))
    (tmp_path / "token").write_text("secret")
    async with ApiClient(ApiAccess(url=api.url, namespace="", token_file=tmp_path / "token")) as client:
        assert len((await client.list(ROUTES))[0]) == 1
        (tmp_path / "token").write_text("wrong")
        with pytest.raises(ForbiddenError, match="Unauthorized"):
            await client.list(ROUTES)


async def test_what_exists_already_is_told_apart(api: ApiServer, client: ApiClient) -> None:
    body = {"metadata": {"name": "a"}}
    await client.create("/api/v1/namespaces/default/events", body)
    with pytest.raises(ExistsError):
        await client.create("/api/v1/namespaces/default/events", body)
    assert api.created == [body]
