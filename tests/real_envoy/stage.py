"""A running ``deltafence up`` between scripted replicas and scripted clients."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from extproc.app.demonstration.apis import PATHS, request_body
from extproc.app.demonstration.stage import gateway
from extproc.sse.dialects import Dialect
from tests.real_envoy.raw_client import Client
from tests.real_envoy.scripted_replica import Attempt, Replica, scripted_replicas
from tests.real_envoy.wire import LIMIT_S, TEST_MARK, encode_head

MANY_REPEATS: dict[str, Any] = {
    "retry_budget": {"percent": 100, "min_per_second": 100, "burst": 1000},
    "replay_cost": {"max_prompt_tokens": 10_000_000, "max_prefill_ms": 3_600_000},
    "deadlines": {"first_delta_ms": 86_400_000, "total_ms": 86_400_000},
}
"""Tests fail more requests, and larger ones, than any route would repeat; and what is learned of prefills from scripted replicas
says that the largest take longer than a client waits."""
STREAMED_CHAT = request_body(Dialect.CHAT, model="m", stream=True)
WHOLE_CHAT = request_body(Dialect.CHAT, model="m", stream=False)


@dataclass
class Stage:
    """The gateway's two addresses, and everything that a test has opened."""

    replicas: list[Replica]
    arrivals: asyncio.Queue[Attempt]
    front: str
    admin: str
    log: Path
    http: httpx.AsyncClient
    clients: list[Client] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)

    async def connect(self) -> Client:
        self.clients.append(await Client.connect(self.front))
        return self.clients[-1]

    async def ask(
        self,
        body: bytes = STREAMED_CHAT,
        *more: tuple[str, str],
        path: str = PATHS[Dialect.CHAT],
        method: str = "POST",
    ) -> Client:
        """A client that has sent a request."""
        client = await self.connect()
        headers = [("host", "gateway"), (TEST_MARK, "1"), ("content-length", str(len(body))), *more]
        await client.write(encode_head(f"{method} {path} HTTP/1.1", headers) + body)
        return client

    async def attempt(self) -> Attempt:
        """The next request that reaches a replica."""
        attempt = await asyncio.wait_for(self.arrivals.get(), LIMIT_S)
        self.attempts.append(attempt)
        return attempt

    async def facts(self, request_id: str) -> dict[str, Any]:
        """The journal's facts about a request, once it has ended."""
        assert request_id.startswith("req_"), request_id
        async with asyncio.timeout(LIMIT_S):
            while True:
                facts: dict[str, Any] = (await self.http.get(f"{self.admin}/deltafence/v1/requests/{request_id}")).json()
                if facts.get("outcome") is not None:
                    return facts
                await asyncio.sleep(0.01)

    def leave_nothing(self) -> None:
        """After a test: every attempt was one that the test knew of. Ends what it has left open."""
        unknown = [self.arrivals.get_nowait() for _ in range(self.arrivals.qsize())]
        for attempt in (*unknown, *self.attempts):
            attempt.writer.transport.abort()
        for client in self.clients:
            client.close()
        self.clients.clear()
        self.attempts.clear()
        assert not unknown, f"attempts that no test asked for: {[attempt.head for attempt in unknown]}"


@asynccontextmanager
async def open_stage(directory: Path, policy: dict[str, Any] | None = None, *options: str) -> AsyncIterator[Stage]:
    """A gateway of its own. At its end no session may have broken."""
    log = directory / "up.log"
    policy_file = directory / "policy.json"
    policy_file.write_text(json.dumps(MANY_REPEATS | (policy or {})))
    arrivals: asyncio.Queue[Attempt] = asyncio.Queue()
    async with (
        scripted_replicas(arrivals, "a", "b") as replicas,
        gateway(replicas, log, "--policy", str(policy_file), *options) as (front, admin),
        httpx.AsyncClient(timeout=LIMIT_S) as http,
    ):
        yield Stage(replicas=replicas, arrivals=arrivals, front=front, admin=admin, log=log, http=http)
    text = log.read_text()
    assert "Traceback" not in text, text[-6000:]
    assert "the session broke" not in text, text[-6000:]
