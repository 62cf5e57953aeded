"""A picture that stays current through everything an API server does, and stays at all when the server is away."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest

from extproc.kubernetes import reflection as module
from extproc.kubernetes.client import ApiClient
from extproc.kubernetes.reflection import Reflection, Standing
from extproc.kubernetes.resources import Name, Object, route_collections
from tests.kubernetes_api.server import ApiServer

ROUTES, _, _ = route_collections()
PATH = ROUTES.path
LIMIT_S = 10


def route(name: str, **annotations: str) -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "default", "annotations": annotations}}


class Watched:
    """A running reflection and what it told."""

    def __init__(self, client: ApiClient, resync_s: float) -> None:
        self.pictures: list[Mapping[Name, Object]] = []
        self._told = asyncio.Event()
        self.reflection = Reflection(client, ROUTES, self._take, resync_s=resync_s)
        self.task = asyncio.create_task(self.reflection.run())

    def _take(self, picture: Mapping[Name, Object]) -> None:
        self.pictures.append(picture)
        self._told.set()

    @property
    def names(self) -> list[str]:
        return sorted(name.name for name in self.reflection.objects)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def watch(
    api: ApiServer, client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., Awaitable[Watched]]]:
    for constant in ("PAUSE_S", "BACKOFF_FIRST_S", "REFUSED_RETRY_S"):
        monkeypatch.setattr(module, constant, 0.01)
    running = []

    async def start(resync_s: float = 600) -> Watched:
        watched = Watched(client, resync_s)
        running.append(watched)
        async with asyncio.timeout(LIMIT_S):
            await watched.reflection.synced.wait()
        return watched

    yield start
    for watched in running:
        await watched.stop()


Watch = Callable[..., Awaitable[Watched]]


async def test_the_picture_follows_every_change(api: ApiServer, watch: Watch) -> None:
    api.put(PATH, route("a"))
    watched = await watch()
    assert watched.names == ["a"]
    api.put(PATH, route("b"))
    await watched.until(lambda: watched.names == ["a", "b"])
    api.put(PATH, route("a", x="1"))
    await watched.until(lambda: watched.reflection.objects[Name("default", "a")]["metadata"]["annotations"] == {"x": "1"})
    api.delete(PATH, "default", "a")
    await watched.until(lambda: watched.names == ["b"])
    assert watched.reflection.freshness.standing is Standing.CURRENT
    assert len(watched.pictures) == 4
    assert list(watched.pictures[0]) == [Name("default", "a")], "a picture once told is never changed"


async def test_a_cut_watch_loses_nothing(api: ApiServer, watch: Watch) -> None:
    api.put(PATH, route("a"))
    watched = await watch()
    await watched.until(lambda: api.watching == 1)
    api.cut_watches()
    api.put(PATH, route("b"))
    await watched.until(lambda: watched.names == ["a", "b"])


async def test_a_proper_end_goes_on_from_its_version(api: ApiServer, watch: Watch) -> None:
    api.put(PATH, route("a"))
    api.raw_watch = []
    watched = await watch()
    await watched.until(lambda: api.watching == 1)
    lists = [request for request in api.requests if "watch" not in request]
    assert len(lists) == 1


async def test_410_lists_again(api: ApiServer, watch: Watch) -> None:
    api.put(PATH, route("a"))
    api.raw_watch = [b'{"type":"ERROR","object":{"code":410,"message":"too old resource version"}}\n']
    watched = await watch()
    await watched.until(lambda: api.watching == 1)
    lists = [request for request in api.requests if "watch" not in request]
    assert len(lists) == 2
    assert watched.names == ["a"]


@pytest.mark.parametrize("code", [410, 429])
async def test_watches_that_fail_after_good_lists_are_tried_less_and_less(
    api: ApiServer, client: ApiClient, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """An API server with too much to do still answers lists, and each of them is all its objects."""
    api.put(PATH, route("a"))
    pauses: list[float] = []
    next_pause_s = Reflection._next_pause_s

    def note(reflection: Reflection) -> float:
        pauses.append(next_pause_s(reflection))
        return 0.0

    monkeypatch.setattr(Reflection, "_next_pause_s", note)
    monkeypatch.setattr(module.random, "uniform", lambda low, high: high)
    api.failing_watch = b'{"type":"ERROR","object":{"code":%d,"message":"not now"}}\n' % code
    watched = Watched(client, 600)
    await watched.until(lambda: len(pauses) >= 5)
    await watched.stop()
    assert pauses[:5] == [0.5, 1.0, 2.0, 4.0, 8.0]


async def test_while_the_server_is_away_the_last_picture_stays_and_its_age_is_told(api: ApiServer, watch: Watch) -> None:
    api.put(PATH, route("a"))
    watched = await watch()
    await watched.until(lambda: api.watching == 1)
    api.status, api.message = 503, "apiserver is shutting down"
    api.cut_watches()
    await watched.until(lambda: watched.reflection.freshness.standing is Standing.STALE)
    freshness = watched.reflection.freshness
    assert watched.names == ["a"]
    assert freshness.age_s is not None
    assert freshness.age_s >= 0
    assert freshness.trouble
    api.status = 200
    api.put(PATH, route("b"))
    await watched.until(lambda: watched.names == ["a", "b"])
    assert watched.reflection.freshness.standing is Standing.CURRENT
    assert watched.reflection.freshness.trouble == ""


@pytest.mark.parametrize(("status", "standing"), [(403, Standing.FORBIDDEN), (404, Standing.ABSENT)])
async def test_what_waiting_does_not_mend_is_said_and_does_not_hold_up_the_start(
    api: ApiServer, watch: Watch, status: int, standing: Standing
) -> None:
    api.status, api.message = status, "cannot list"
    watched = await watch()
    assert watched.reflection.freshness.standing is standing
    assert watched.reflection.freshness.age_s is None
    assert "cannot list" in watched.reflection.freshness.trouble
    api.status = 200
    api.put(PATH, route("a"))
    await watched.until(lambda: watched.names == ["a"])


async def test_a_right_that_is_taken_away_leaves_the_picture(api: ApiServer, watch: Watch) -> None:
    api.put(PATH, route("a"))
    watched = await watch()
    await watched.until(lambda: api.watching == 1)
    api.status = 403
    api.cut_watches()
    await watched.until(lambda: watched.reflection.freshness.standing is Standing.FORBIDDEN)
    assert watched.names == ["a"]


async def test_the_resync_finds_what_a_watch_lost(api: ApiServer, watch: Watch) -> None:
    api.put(PATH, route("a"))
    watched = await watch(0.05)
    api.history.clear()
    api.objects[PATH].clear()
    await watched.until(lambda: watched.names == [])


async def test_it_waits_longer_after_each_failure(api: ApiServer, client: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []

    async def note(wait_s: float) -> None:
        waits.append(wait_s)
        if len(waits) == 9:
            raise asyncio.CancelledError

    monkeypatch.setattr(module.asyncio, "sleep", note)
    monkeypatch.setattr(module.random, "uniform", lambda low, high: high)
    api.status = 500
    with pytest.raises(asyncio.CancelledError):
        await Reflection(client, ROUTES, lambda picture: None).run()
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
