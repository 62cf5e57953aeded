"""A ``deltafence up`` over a database, its clients, and what the commands tell of that database afterwards."""

import asyncio
import itertools
import json
import sys
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from extproc.app.demonstration.apis import PATHS, request_body, streamed_text, whole_text
from extproc.app.demonstration.stage import gateway, is_placeable, until_every_replica
from extproc.contract import headers as names
from extproc.sim.faults import Fault, What, Where
from extproc.sim.process import ReplicaProcess
from extproc.sse.dialects import Dialect

LIMIT_S = 60.0
SCENE = "x-scene"
"""A client's header that one logical request has, so that faults can be for its first attempt, whichever replica it meets."""
POLICY: dict[str, Any] = {"retry_budget": {"percent": 100, "min_per_second": 100, "burst": 1000}}
"""Tests fail more requests than any route would repeat."""


def chat(*, stream: bool = True, calls_tool: bool = False, text: str = "Tell me which replica you are.") -> bytes:
    """A chat request. ``calls_tool``: its replica acts as an agent does, and calls a tool before its first token."""
    document = json.loads(request_body(Dialect.CHAT, model="sim-model", stream=stream))
    document["messages"][0]["content"] = text
    if calls_tool:
        document["metadata"] = {"sim_tool": "charge"}
    return json.dumps(document).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer as its client saw it. ``cut``: the connection broke before its end."""

    status: int
    headers: httpx.Headers
    body: bytes
    cut: bool = False

    @property
    def request_id(self) -> str:
        return str(self.headers[names.REQUEST_ID])

    @property
    def attempts(self) -> int:
        return int(self.headers[names.ATTEMPTS])

    @property
    def replayed(self) -> bool:
        return self.headers.get(names.REPLAYED) == "true"

    @property
    def error(self) -> dict[str, Any]:
        """The error object: the body's, or the terminal event's."""
        documents = self.events if self.is_stream else [json.loads(self.body)]
        (error,) = [document["error"] for document in documents if isinstance(document, dict) and "error" in document]
        return dict(error)

    @property
    def is_stream(self) -> bool:
        return str(self.headers["content-type"]).startswith("text/event-stream")

    @property
    def events(self) -> list[Any]:
        data = [line.removeprefix("data: ") for line in self.body.decode().split("\n") if line.startswith("data: ")]
        return [entry if entry == "[DONE]" else json.loads(entry) for entry in data]

    @property
    def text(self) -> str:
        return streamed_text(Dialect.CHAT, self.events) if self.is_stream else whole_text(Dialect.CHAT, json.loads(self.body))

    @property
    def is_whole(self) -> bool:
        """One complete answer, and nothing but that."""
        if not self.is_stream:
            return self.status == 200 and not self.cut and "error" not in json.loads(self.body)
        errors = [event for event in self.events if isinstance(event, dict) and "error" in event]
        return self.status == 200 and not self.cut and not errors and self.events[-1] == "[DONE]"


class Asking:
    """A request on its way, whose answer can be looked at while it comes."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._bytes = response.aiter_raw()
        self.body = b""

    async def read_until(self, mark: bytes) -> None:
        """Read until the body has ``mark`` in it."""
        while mark not in self.body:
            self.body += await anext(self._bytes)

    async def read_to_end(self) -> Answer:
        cut = False
        try:
            async for piece in self._bytes:
                self.body += piece
        except httpx.HTTPError:
            cut = True
        return Answer(status=self._response.status_code, headers=self._response.headers, body=self.body, cut=cut)


@dataclass(slots=True, kw_only=True)
class Gateway:
    """One running gateway."""

    front: str
    admin: str
    log: Path
    http: httpx.AsyncClient

    async def ask(self, body: bytes, headers: Mapping[str, str] | None = None, path: str = PATHS[Dialect.CHAT]) -> Answer:
        async with self.asking(body, headers, path) as asking:
            return await asking.read_to_end()

    @asynccontextmanager
    async def asking(
        self, body: bytes, headers: Mapping[str, str] | None = None, path: str = PATHS[Dialect.CHAT]
    ) -> AsyncIterator[Asking]:
        every = {"content-type": "application/json", **(headers or {})}
        async with self.http.stream("POST", self.front + path, content=body, headers=every) as response:
            yield Asking(response)

    async def facts(self, request_id: str) -> dict[str, Any]:
        """What the gateway tells of a request, once it has ended."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                facts: dict[str, Any] = (await self.http.get(f"{self.admin}/deltafence/v1/requests/{request_id}")).json()
                if facts.get("outcome") is not None:
                    return facts
                await asyncio.sleep(0.02)


async def all_placeable(*gateways: Gateway) -> None:
    """Wait until every replica would get an attempt of every gateway at once: each of them looks by itself."""
    await until_every_replica(is_placeable, *(gateway.admin for gateway in gateways))


@asynccontextmanager
async def durable_gateway(
    replicas: Sequence[ReplicaProcess], folder: Path, database: str, *options: str, policy: Mapping[str, Any] | None = None
) -> AsyncIterator[Gateway]:
    """A ``deltafence up`` over a database. At its end no session may have broken."""
    folder.mkdir(exist_ok=True)
    log, policy_file = folder / "up.log", folder / "policy.json"
    policy_file.write_text(json.dumps(POLICY | dict(policy or {})))
    every = ("--journal", database, "--policy", str(policy_file), *options)
    async with gateway(replicas, log, *every) as (front, admin), httpx.AsyncClient(timeout=LIMIT_S) as http:
        yield Gateway(front=front, admin=admin, log=log, http=http)
    text = log.read_text()
    assert "Traceback" not in text, text[-6000:]


async def logged(replicas: Sequence[ReplicaProcess]) -> list[dict[str, Any]]:
    """The attempts that living replicas have logged, oldest first; not the questions of health."""
    records = [record for replica in replicas if replica.returncode is None for record in await replica.log()]
    return sorted((record for record in records if record["request_id"]), key=lambda record: float(record["received_at"]))


class Scene:
    """One logical request of a test's, with faults of its own at both replicas."""

    def __init__(self, replicas: Sequence[ReplicaProcess]) -> None:
        self.replicas = replicas
        self.name = uuid.uuid4().hex
        self.headers = {SCENE: self.name}

    async def arm(self, where: Where, what: What, *, nth: int | None = 1, deltas: int | None = None) -> None:
        """For the request's ``nth`` attempt, whichever replica it meets; None: for every one."""
        fault = Fault(where=where, what=what, nth=nth, deltas=deltas, header=f"{SCENE}={self.name}")
        for replica in self.replicas:
            await replica.set_faults(fault)

    async def struck(self) -> None:
        """Wait until a replica holds the request, or has begun to break."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                if any(record["fault"] for record in await logged(self.replicas)):
                    return
                await asyncio.sleep(0.02)


async def deltafence(*words: str) -> tuple[int, str, str]:
    """A command as an operator types it: its status, what it printed, and its complaints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "extproc.app", *words), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    printed, complaints = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed.decode(), complaints.decode()


async def verified(database: str) -> dict[str, Any]:
    """What ``deltafence journal verify`` counts; no promise may be broken."""
    status, printed, complaints = await deltafence("journal", "verify", "--db", database, "--json")
    assert status == 0, printed + complaints
    return dict(json.loads(printed))


async def stored(database: str, request_id: str) -> dict[str, Any]:
    """What ``deltafence journal show`` tells of a request."""
    status, printed, complaints = await deltafence("journal", "show", request_id, "--db", database, "--json")
    assert status == 0, complaints
    return dict(json.loads(printed))


async def tool_calls(database: str) -> list[dict[str, Any]]:
    """What ``deltafence tools list`` shows."""
    status, printed, complaints = await deltafence("tools", "list", "--db", database, "--json")
    assert status == 0, complaints
    return [json.loads(line) for line in printed.splitlines()]


def assert_one_publisher_at_a_time(facts: Mapping[str, Any]) -> None:
    """R6, R18: every attempt before the last one was over for good before the next began."""
    kinds = [(event["kind"], event["attempt_id"]) for event in facts["events"]]
    attempts = [attempt["attempt_id"] for attempt in facts["attempts"]]
    for earlier, later in itertools.pairwise(attempts):
        assert kinds.index(("fenced", earlier)) < kinds.index(("attempt_started", later))
        assert ("first_delta_sent", earlier) not in kinds
