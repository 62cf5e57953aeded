"""Guarded replicas behind the real Envoy, each over a link of its own, and what all sides say of one request (R18)."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from extproc.app.demonstration.apis import QUESTION, request_body, streamed_text
from extproc.app.demonstration.judge import Exchange, read_events
from extproc.app.demonstration.stage import gateway, is_placeable, until_every_replica
from extproc.sim.faults import Fault, What, Where
from extproc.sim.link import Link, start_link
from extproc.sim.process import ReplicaProcess, start_replica
from extproc.sim.settings import Settings
from extproc.sse.dialects import Dialect
from tests.streamed_request import StreamedRequest

SECRET = "a secret of this test"
QUESTION_BODY = request_body(Dialect.CHAT, model="sim-model", stream=True)
STALLED_PREFILL = Fault(where=Where.IN_PREFILL, what=What.STALL, body_contains=QUESTION)
"""As long as it takes; health's own short questions are not meant."""
PLACINGS_MAX = 6
LIMIT_S = 60.0
POLL_S = 0.02


def guarded(name: str, **fields: Any) -> Settings:
    return Settings(name=name, guard=True, token=SECRET, **fields)


@dataclass(frozen=True)
class Host:
    """A replica and the network to it."""

    replica: ReplicaProcess
    link: Link

    @property
    def url(self) -> str:
        """Where the gateway finds it."""
        return self.link.url


@dataclass
class Leased:
    """A gateway in front of some hosts."""

    hosts: Sequence[Host]
    front: str
    admin: str
    log: Path
    session: aiohttp.ClientSession
    requests: list[StreamedRequest] = field(default_factory=list)

    def ask(self, body: bytes = QUESTION_BODY) -> StreamedRequest:
        self.requests.append(StreamedRequest.send(self.session, self.front, body))
        return self.requests[-1]

    async def ask_at(self, host: Host, body: bytes = QUESTION_BODY) -> tuple[StreamedRequest, str]:
        """A request that this host computes, and its id. Placing goes round, so some that others answer may come before."""
        for _ in range(PLACINGS_MAX):
            request = self.ask(body)
            while not request.answer.done():
                for record in await host.replica.log():
                    if record["ended"] is None and record["slot_taken_at"] is not None and record["request_id"]:
                        return request, record["request_id"]
                await asyncio.sleep(POLL_S)
        raise LookupError(f"{host.url} was never asked")

    async def records(self, request_id: str) -> list[dict[str, Any]]:
        """What all replicas logged of a request, oldest first, once none of them works on it any more."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                logs = [await host.replica.log() for host in self.hosts if host.replica.returncode is None]
                records = [record for log in logs for record in log if record["request_id"] == request_id]
                if all(record["ended"] for record in records):
                    return sorted(records, key=lambda record: float(record["received_at"]))
                await asyncio.sleep(POLL_S)

    async def facts(self, request_id: str) -> dict[str, Any]:
        """The journal's word, as it is now."""
        async with self.session.get(f"{self.admin}/deltafence/v1/requests/{request_id}") as answer:
            return dict(await answer.json())

    async def until_event(self, request_id: str, kind: str) -> dict[str, Any]:
        """The journal's word once it holds such an event."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                facts = await self.facts(request_id)
                if kind in kinds(facts):
                    return facts
                await asyncio.sleep(POLL_S)

    async def identity_of(self, replica: ReplicaProcess) -> str:
        """What the gateway knows of it."""
        async with self.session.get(f"{self.admin}/deltafence/v1/replicas") as answer:
            rows = (await answer.json())["replicas"]
        return next(str(row["identity"]) for row in rows if row["destination"] == replica.address)

    async def until_identity(self, replica: ReplicaProcess, is_right: Callable[[str], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not is_right(await self.identity_of(replica)):
                await asyncio.sleep(POLL_S)

    async def whole_text(self, request: StreamedRequest) -> tuple[Exchange, str]:
        """A whole answer and its text, which is word for word what its last attempt published and nothing of another (R18)."""
        exchange = await request.answer
        assert (exchange.status, exchange.broken) == (200, None), exchange
        events = read_events(exchange.body)
        assert events.count("[DONE]") == 1
        text = streamed_text(Dialect.CHAT, events)
        records = await self.records(exchange.request_id)
        assert text == "".join(chunk["text"] for chunk in records[-1]["chunks"])
        return exchange, text


def kinds(facts: dict[str, Any]) -> list[str]:
    """A journal's events, in order."""
    return [event["kind"] for event in facts["events"]]


@asynccontextmanager
async def start_host(settings: Settings) -> AsyncIterator[Host]:
    async with start_replica(settings) as replica, start_link(replica.port) as link:
        yield Host(replica, link)


@asynccontextmanager
async def leased(
    directory: Path,
    settings: Sequence[Settings],
    policy: dict[str, Any],
    *processor_options: str,
    token: str = SECRET,
    over_links: bool = True,
) -> AsyncIterator[Leased]:
    """Replicas, links and a gateway of their own. No session may break, and no client is left behind.

    A link accepts connections also for a replica that is gone; without one they are refused.
    """
    policy_file, token_file, log = (directory / name for name in ("policy.json", "token", "up.log"))
    policy_file.write_text(json.dumps(policy))
    token_file.write_text(token)
    options = ("--policy", str(policy_file), "--token-file", str(token_file), "--drain-limit", "1s", "--", *processor_options)
    async with AsyncExitStack() as stack:
        hosts = [await stack.enter_async_context(start_host(each)) for each in settings]
        front, admin = await stack.enter_async_context(
            gateway(hosts if over_links else [host.replica for host in hosts], log, *options)
        )
        session = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT_S)))
        await until_every_replica(is_placeable, admin)
        stage = Leased(hosts, front, admin, log, session)
        try:
            yield stage
        finally:
            for request in stage.requests:
                await request.leave()
    text = log.read_text()
    assert "Traceback" not in text, text[-6000:]
    assert "the session broke" not in text, text[-6000:]
