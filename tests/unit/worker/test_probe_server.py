"""The probe on real sockets: a watch on a scripted server, and the pages that the kubelet reads."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import pytest

from extproc.decision.liveness import LivenessSettings
from extproc.decision.verdicts import HealthSettings, Verdict
from extproc.worker import probe_server, watch
from extproc.worker.plain_http import Target
from extproc.worker.probe_server import CONNECTIONS_MAX, HEAD_BYTES_MAX, ProbeServer
from extproc.worker.watch import Watch, WatchSettings
from tests.unit.scripted_replica import ScriptedReplica, fetch, idle_replica, metrics

SETTINGS = WatchSettings(
    health=HealthSettings(interval_ms=10, hung_after_ms=50, stale_after_ms=60_000, answer_deadline_ms=5_000),
    liveness=LivenessSettings(refused_after_ms=3_600_000),
    read_timeout_ms=5_000,
)


@dataclass(slots=True)
class Probe:
    watch: Watch
    port: int
    notes: list[dict[str, object]] = field(default_factory=list)
    noted: asyncio.Condition = field(default_factory=asyncio.Condition)

    def note(self, word: str, facts: dict[str, object]) -> None:
        self.notes.append({"event": word} | facts)
        self._waking = asyncio.ensure_future(self._wake())

    _waking: asyncio.Future[None] | None = None

    async def _wake(self) -> None:
        async with self.noted:
            self.noted.notify_all()

    async def until(self, verdict: Verdict) -> None:
        async with self.noted:
            await self.noted.wait_for(lambda: self.watch.judgement.verdict is verdict)

    async def page(self, path: str) -> tuple[int, dict[str, object]]:
        status, body = await fetch(self.port, path)
        return status, json.loads(body)


@asynccontextmanager
async def probing(replica: ScriptedReplica, settings: WatchSettings = SETTINGS) -> AsyncIterator[Probe]:
    watch = Watch(Target.parse(replica.url), settings, lambda word, facts: probe.note(word, facts))
    async with ProbeServer(watch).listening("127.0.0.1", 0) as (address,):
        probe = Probe(watch=watch, port=int(address.rpartition(":")[2]))
        watching = asyncio.create_task(watch.run())
        try:
            yield probe
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching


async def test_an_idle_server_is_alive_ready_and_asked_for_one_token():
    async with idle_replica().serving() as replica, probing(replica) as probe:
        await replica.until_asked("/v1/completions")
        await replica.until_asked("/metrics", times=len(replica.asked) + 2)
        assert (await probe.page("/livez"))[0] == 200
        status, ready = await probe.page("/readyz")
        assert (status, ready["verdict"]) == (200, "idle")
        status, report = await probe.page("/verdict")
        assert status == 200
        assert report["verdict"] == "idle"
        assert "a short answer came in" in str(report["evidence"])
        assert len(report["readings"]) == 2
        assert report["readings"][1]["engines"][0]["num_requests_running"] == 0
        assert set(report["next"]) == {"look", "in_s"}
        assert report["livez"]["alive"] is True
        assert report["restarts"] == {"asked_for": [], "within_hour": 0}


async def test_a_busy_server_is_never_asked_for_anything_but_its_metrics():
    async with idle_replica().serving() as replica:
        replica.serve(metrics(running=4, waiting=2, steps=0))
        async with probing(replica, replace(SETTINGS, health=replace(SETTINGS.health, hung_after_ms=600_000))) as probe:
            for steps in range(1, 40):
                await replica.until_asked("/metrics", times=len(replica.asked) + 1)
                replica.serve(metrics(running=4, waiting=2, steps=steps))
            assert (await probe.page("/livez"))[0] == 200
            assert (await probe.page("/readyz"))[0] == 200
        assert set(replica.asked) <= {"GET /metrics", "GET /health"}


async def test_a_hung_server_fails_liveness_with_its_evidence_on_record_and_in_the_log():
    async with idle_replica().serving() as replica:
        replica.serve(metrics(running=1))
        async with ScriptedClient(replica), probing(replica) as probe:
            await probe.until(Verdict.HUNG)
            status, live = await probe.page("/livez")
            assert (status, live["alive"]) == (503, False)
            assert str(live["reason"]).startswith("hung: 1 running; nothing moved in")
            assert (await probe.page("/readyz"))[0] == 503
            assert (await probe.page("/livez"))[0] == 503
            _, report = await probe.page("/verdict")
            assert (report["verdict"], report["cause"]) == ("hung", "engine_stands_still")
            assert len(report["restarts"]["asked_for"]) == 1
            assert [note["event"] for note in probe.notes].count("restart_asked_for") == 1
            replica.serve(metrics(started=1764429999.0))
            await probe.until(Verdict.IDLE)
            assert (await probe.page("/livez"))[0] == 200
        assert "GET /health" in replica.asked
        assert replica.asked.index("POST /v1/completions") > replica.asked.index("GET /is_paused")


async def test_beyond_the_limit_it_only_reports():
    settings = replace(SETTINGS, liveness=replace(SETTINGS.liveness, restarts_per_hour_max=0))
    async with idle_replica().serving() as replica:
        replica.serve(metrics(running=1))
        async with ScriptedClient(replica), probing(replica, settings) as probe:
            await probe.until(Verdict.HUNG)
            status, live = await probe.page("/livez")
            assert status == 200
            assert "a person is needed" in str(live["reason"])


async def test_gauges_that_froze_with_no_client_connected_are_not_hung():
    async with idle_replica().serving() as replica:
        replica.serve(metrics(running=4))
        async with probing(replica) as probe:
            await probe.until(Verdict.SUSPECT)
            await replica.until_asked("/metrics", times=replica.asked.count("GET /metrics") + 30)
            assert probe.watch.judgement.verdict is Verdict.SUSPECT
            assert (await probe.page("/livez"))[0] == 200


async def test_a_dead_server_is_given_the_time_of_a_load_and_then_fails():
    async with idle_replica().serving() as replica:
        quick = replace(SETTINGS, liveness=replace(SETTINGS.liveness, refused_after_ms=0))
        async with probing(replica) as probe, probing(replica, quick) as quick_probe:
            await probe.until(Verdict.IDLE)
            await quick_probe.until(Verdict.IDLE)
            await replica.stop_listening()
            await probe.until(Verdict.DEAD)
            await quick_probe.until(Verdict.DEAD)
            status, live = await probe.page("/livez")
            assert status == 200
            assert "that a load may take" in str(live["reason"])
            assert (await probe.page("/readyz"))[0] == 503
            assert (await quick_probe.page("/livez"))[0] == 503


async def test_a_server_that_does_not_listen_yet_is_starting_and_alive():
    replica = idle_replica()
    async with replica.serving():
        pass
    async with probing(replica) as probe:
        await probe.until(Verdict.STARTING)
        assert (await probe.page("/livez"))[0] == 200
        assert (await probe.page("/readyz"))[0] == 503
        async with replica.serving(replica.port):
            await probe.until(Verdict.IDLE)


async def test_a_short_answer_gives_way_to_real_work(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watch, "GIVE_WAY_EVERY_S", 0.01)
    async with idle_replica().serving() as replica:
        replica.pages["/v1/completions"] = None
        async with probing(replica) as probe:
            await replica.until_asked("/v1/completions")
            replica.serve(metrics(running=2))
            await replica.until_left("/v1/completions")
            await probe.until(Verdict.BUSY)
        assert replica.open_most["/v1/completions"] == 1


async def test_a_short_answer_waits_while_it_is_alone_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watch, "GIVE_WAY_EVERY_S", 0.01)
    async with idle_replica().serving() as replica:
        replica.pages["/v1/completions"] = None
        async with probing(replica):
            await replica.until_asked("/v1/completions")
            replica.serve(metrics(running=1))
            await replica.until_asked("/metrics", times=replica.asked.count("GET /metrics") + 5)
            assert replica.left == []


# The server's own manners


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/livez", "GET", 200),
        ("/livez?verbose", "GET", 200),
        ("/livez", "HEAD", 200),
        ("/", "GET", 404),
        ("/livez/", "GET", 404),
        ("/livez", "POST", 405),
        ("/a b", "GET", 400),
    ],
)
async def test_pages_and_methods(path: str, method: str, status: int):
    async with idle_replica().serving() as replica, probing(replica) as probe:
        answered, body = await fetch(probe.port, path, method)
        assert answered == status
        assert (body == b"") is (method == "HEAD")


async def test_a_head_that_is_too_large_is_refused():
    async with idle_replica().serving() as replica, probing(replica) as probe:
        status, _ = await fetch(probe.port, "/" + "a" * HEAD_BYTES_MAX)
        assert status == 400


async def test_a_client_that_states_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probe_server, "REQUEST_TIMEOUT_S", 0.01)
    async with idle_replica().serving() as replica, probing(replica) as probe:
        reader, writer = await asyncio.open_connection("127.0.0.1", probe.port)
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


async def test_silent_clients_do_not_keep_the_kubelet_out():
    async with idle_replica().serving() as replica, probing(replica) as probe:
        silent = [await asyncio.open_connection("127.0.0.1", probe.port) for _ in range(CONNECTIONS_MAX + 5)]
        assert (await probe.page("/livez"))[0] == 200
        with suppress(ConnectionError):
            assert await silent[0][0].read() == b"", "the one that waited longest has gone"
        for _, writer in silent:
            writer.close()


async def test_a_client_that_leaves_harms_nobody():
    async with idle_replica().serving() as replica, probing(replica) as probe:
        for _ in range(10):
            _, writer = await asyncio.open_connection("127.0.0.1", probe.port)
            writer.write(b"GET /verdict HTTP/1.1\r\n\r\n")
            writer.transport.abort()
        assert (await probe.page("/livez"))[0] == 200


@pytest.mark.parametrize(("path", "status"), [("/livez", 200), ("/verdict", 500)])
async def test_a_fault_of_the_probes_own_does_not_restart_the_model(path: str, status: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Watch, "answer_liveness", lambda _: 1 / 0)
    monkeypatch.setattr(Watch, "peek_liveness", lambda _: 1 / 0)
    async with idle_replica().serving() as replica, probing(replica) as probe:
        answered, report = await probe.page(path)
        assert answered == status
        assert "ZeroDivisionError" in str(report["error"])


class ScriptedClient:
    """Somebody who holds a connection to the server, and so may be waiting for an answer."""

    def __init__(self, replica: ScriptedReplica) -> None:
        self._replica = replica

    async def __aenter__(self) -> None:
        _, self._writer = await asyncio.open_connection("127.0.0.1", self._replica.port)

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
