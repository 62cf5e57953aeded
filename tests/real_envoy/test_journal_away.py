"""The journal's database away in the middle of requests: a disk that takes no more, a PostgreSQL that is silent (R4, R9)."""

import asyncio
import json
import resource
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import httpx
import pytest

from extproc.app.addresses import Address, ReplicaAddress
from extproc.app.envoy_config import ToolEndpoint
from extproc.contract import headers as names
from extproc.decision.tool_call import ToolRoute
from extproc.journal.availability import WhenUnavailable
from extproc.links.listening import free_ports
from extproc.sim.faults import What, Where
from extproc.sim.link import Link, start_link
from extproc.sim.process import ReplicaProcess, start_replica
from extproc.sim.settings import Settings
from tests.real_envoy.durable import POLICY, Answer, Asking, Scene, chat, logged, stored, verified
from tests.real_envoy.frail import Frail
from tests.real_envoy.scripted_tool import ScriptedTool, scripted_tool

JUNK_BYTES = 400_000
"""More than the processor's log grows to in a test: the limit on its files must stop the database's alone."""
CALL = {names.REQUEST_ID: "req_01J00000000000000000000000", names.TOOL_CALL: "call_07"}


class Outage(Protocol):
    """One way in which a database can be away, and come back."""

    @property
    def address(self) -> str:
        """The database as the processor is told of it."""

    def begin(self, processor: int) -> None: ...

    def end(self, processor: int) -> None: ...


class FullDisk:
    """The kernel lets the processor's files grow no further. A reader keeps SQLite from using its write-ahead log again."""

    def __init__(self, url: str) -> None:
        self.address = url
        self._reader: sqlite3.Connection | None = None

    def begin(self, processor: int) -> None:
        path = self.address.removeprefix("sqlite:")
        with closing(sqlite3.connect(path, isolation_level=None)) as filling:
            filling.execute("CREATE TABLE junk (content BLOB)")
            filling.execute("INSERT INTO junk VALUES (zeroblob(?))", (JUNK_BYTES,))
            self._reader = sqlite3.connect(path, isolation_level=None)
            self._reader.execute("BEGIN")
            self._reader.execute("SELECT count(*) FROM junk").fetchone()
        written = Path(f"{path}-wal").stat().st_size
        assert written > JUNK_BYTES
        resource.prlimit(processor, resource.RLIMIT_FSIZE, (written, resource.RLIM_INFINITY))

    def end(self, processor: int) -> None:
        resource.prlimit(processor, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert self._reader is not None
        self._reader.close()


class SilentServer:
    """Nothing comes back from PostgreSQL any more, and nothing is closed."""

    def __init__(self, url: str, link: Link) -> None:
        self._link = link
        parts = urlsplit(url)
        self.address = parts._replace(netloc=f"{parts.username}@127.0.0.1:{link.port}").geturl()

    def begin(self, processor: int) -> None:
        self._link.cut()

    def end(self, processor: int) -> None:
        self._link.heal()


@dataclass
class AwayStage:
    gateway: Frail
    replicas: list[ReplicaProcess]
    tool: ScriptedTool
    outage: Outage
    database: str

    def begin_outage(self) -> None:
        self.outage.begin(self._pid)

    def end_outage(self) -> None:
        self.outage.end(self._pid)

    @property
    def _pid(self) -> int:
        assert self.gateway.processor is not None
        return self.gateway.processor.process.pid

    async def call_tool(self) -> httpx.Response:
        return await self.gateway.http.post(f"{self.gateway.tools}/act", content=b"{}", headers=CALL)

    async def release(self) -> None:
        for replica in self.replicas:
            await replica.release()

    async def metric(self, name: str) -> float:
        """A sample of /metrics without labels, or the sum of its samples."""
        lines = (await self.gateway.http.get(f"{self.gateway.admin}/metrics")).text.splitlines()
        samples = [line.rpartition(" ") for line in lines if line.startswith(name)]
        assert samples, name
        return sum(float(value) for _, _, value in samples)

    async def attempts(self) -> int:
        return len(await logged(self.replicas))


@pytest.fixture
async def start_stage(
    start_envoy, database_url: str, tmp_path: Path, run_directory: Path
) -> AsyncIterator[Callable[[WhenUnavailable], Awaitable[AwayStage]]]:
    async with AsyncExitStack() as stack:

        async def start(when_unavailable: WhenUnavailable) -> AwayStage:
            outage: Outage = FullDisk(database_url)
            if database_url.startswith("postgresql://"):
                link = await stack.enter_async_context(start_link(urlsplit(database_url).port or 5432))
                outage = SilentServer(database_url, link)
            tool = await stack.enter_async_context(scripted_tool())
            settings = {"tokens": 4, "claims": str(tmp_path)}
            replicas = [await stack.enter_async_context(start_replica(Settings(name=name, **settings))) for name in ("a", "b")]
            admin, tools = free_ports(2)
            address = ReplicaAddress(scheme="http", host="127.0.0.1", port=tool.port)
            envoy = await start_envoy(
                [ReplicaAddress.parse(replica.url) for replica in replicas],
                tools=(ToolEndpoint(route=ToolRoute(name="charge"), address=address),),
                tools_listen=Address(host="127.0.0.1", port=tools),
            )
            policy = tmp_path / "policy.json"
            policy.write_text(json.dumps(POLICY))
            gateway = Frail(
                front=envoy.url,
                admin=f"http://127.0.0.1:{admin}",
                log=tmp_path,
                http=await stack.enter_async_context(httpx.AsyncClient(timeout=60)),
                tools=f"http://127.0.0.1:{tools}/tools/charge",
                options=(
                    *("--socket", str(run_directory / "p1.sock"), "--egress", str(run_directory / "egress.sock")),
                    *(word for replica in replicas for word in ("--replica", replica.url)),
                    *("--admin", f"127.0.0.1:{admin}", "--policy", str(policy)),
                    *("--journal", outage.address, "--journal-unavailable", when_unavailable),
                ),
            )
            await gateway.start()
            stack.push_async_callback(gateway.kill)
            return AwayStage(gateway, replicas, tool, outage, database_url)

        yield start


async def eventually_served(stage: AwayStage) -> Answer:
    """The first generation that is served again."""
    async with asyncio.timeout(60):
        while (answer := await stage.gateway.ask(chat())).status == 503:
            assert answer.error["code"] == "journal_unavailable"
            await asyncio.sleep(0.1)
    return answer


async def hold_one_in_decode_and_one_in_prefill(
    stage: AwayStage, stack: AsyncExitStack, headers: dict[str, str]
) -> tuple[Asking, "asyncio.Task[Answer]"]:
    """A stream that has begun, and a request whose first delta is still to come."""
    running, waiting = Scene(stage.replicas), Scene(stage.replicas)
    await running.arm(Where.MID_DECODE, What.HOLD, deltas=2)
    stream = await stack.enter_async_context(stage.gateway.asking(chat(), running.headers))
    await stream.read_until(b':1 "')
    await waiting.arm(Where.IN_PREFILL, What.HOLD)
    asking = asyncio.create_task(stage.gateway.ask(chat(), waiting.headers | headers))
    async with asyncio.timeout(30):
        while [record["fault"] for record in await logged(stage.replicas)] != ["mid_decode:hold", "in_prefill:hold"]:
            await asyncio.sleep(0.02)
    return stream, asking


@pytest.mark.timeout(180)
async def test_a_boundary_that_can_not_be_recorded_is_not_crossed(start_stage) -> None:
    stage = await start_stage(WhenUnavailable.REFUSE)
    async with AsyncExitStack() as stack:
        stream, asking = await hold_one_in_decode_and_one_in_prefill(stage, stack, {})
        stage.begin_outage()
        await stage.release()
        # What had begun needs the journal no more.
        begun = await stream.read_to_end()
        refused = await asking
    assert begun.is_whole
    assert (refused.status, refused.error["code"]) == (503, "journal_unavailable")
    assert (refused.error["partial_output"], refused.attempts, refused.headers[names.SHOULD_RETRY]) == (False, 1, "false")
    # New ones are refused at once, before they cost a replica anything.
    attempts = await stage.attempts()
    for headers in ({}, {names.IDEMPOTENCY_KEY: '"k"'}):
        new = await stage.gateway.ask(chat(), headers)
        assert (new.status, new.error["code"], new.attempts) == (503, "journal_unavailable", 0)
        assert (new.headers["retry-after"], new.headers[names.SHOULD_RETRY]) == ("5", "true")
    call = await stage.call_tool()
    assert (call.status_code, call.json()["error"]["code"]) == (503, "journal_unavailable")
    assert (stage.tool.log, await stage.attempts()) == ([], attempts)
    told = " ".join((refused.body + new.body + call.content).decode().split())
    assert stage.database not in told
    assert "SQLite" not in told
    assert "PostgreSQL" not in told
    assert await stage.metric("deltafence_journal_available") == 0

    stage.end_outage()
    assert (await eventually_served(stage)).is_whole
    assert await stage.metric("deltafence_journal_available") == 1
    assert (await stage.gateway.facts(begun.request_id))["outcome"] == "completed"
    facts = await stage.gateway.facts(refused.request_id)
    assert (facts["outcome"], facts["error_code"]) == ("failed", "journal_unavailable")
    # A server that fell silent may have heard of the boundary, if it was given it; a full disk has not taken it.
    in_doubt = facts["first_delta_sent"]
    assert not in_doubt or isinstance(stage.outage, SilentServer)
    assert (await stage.call_tool()).status_code == 201
    assert await stage.gateway.stop()
    counts = await verified(stage.database)
    assert (counts["boundaries_recorded_late"], counts["boundaries_in_doubt"]) == (0, in_doubt)


@pytest.mark.timeout(180)
async def test_where_the_operator_chose_so_generations_go_on_loudly(start_stage, capfd: pytest.CaptureFixture[str]) -> None:
    stage = await start_stage(WhenUnavailable.SERVE_WITHOUT_JOURNAL)
    keyed = {names.IDEMPOTENCY_KEY: '"k"'}
    async with AsyncExitStack() as stack:
        stream, asking = await hold_one_in_decode_and_one_in_prefill(stage, stack, keyed)
        stage.begin_outage()
        await stage.release()
        assert (await stream.read_to_end()).is_whole
        # A key's whole point is the record.
        refused = await asking
    assert (refused.status, refused.error["code"], refused.error["partial_output"]) == (503, "journal_unavailable", False)
    served = await stage.gateway.ask(chat())
    assert served.is_whole
    assert await stage.metric("deltafence_journal_unrecorded") == 1
    assert await stage.metric("deltafence_journal_available") == 0
    again = await stage.gateway.ask(chat(), keyed)
    assert (again.status, again.error["code"]) == (503, "journal_unavailable")
    assert (await stage.call_tool()).status_code == 503
    assert stage.tool.log == []

    stage.end_outage()
    async with asyncio.timeout(60):
        while await stage.metric("deltafence_journal_available") == 0:
            await asyncio.sleep(0.1)
    facts = await stage.gateway.facts(served.request_id)
    assert (facts["outcome"], facts["first_delta_sent"]) == ("completed", True)
    assert await stage.gateway.stop()
    assert (await verified(stage.database))["boundaries_recorded_late"] == 1
    (late,) = [
        event for event in (await stored(stage.database, served.request_id))["events"] if event["kind"] == "first_delta_sent"
    ]
    assert late["detail"] == {"recorded": "late"}
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "SERVING WITHOUT JOURNAL" in line]
    assert served.request_id in line
