"""``deltafence up`` in front of real vLLM servers, and the ways to break a server at a chosen moment."""

import asyncio
import json
import os
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import aiohttp

from extproc.app.demonstration.apis import streamed_text
from extproc.app.demonstration.judge import Exchange, read_events, terminal_error
from extproc.app.demonstration.stage import HasUrl, gateway, may_repeat, until_every_replica
from extproc.sse.dialects import Dialect
from tests.real_vllm.server import TOKEN, VllmServer
from tests.streamed_request import StreamedRequest

DEADLINE_S = 120.0
POLL_S = 0.05
IDLE_LOOKS = 10
"""So many looks in a row without CPU time: the engine has computed all that it was asked for."""


class Part(StrEnum):
    """What of a vLLM server is killed."""

    API_SERVER = "api_server"
    ENGINE = "engine"


def process_of(server: VllmServer, part: Part) -> int:
    assert server.process is not None
    return server.process.pid if part is Part.API_SERVER else server.engine_pid()


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running one, and the servers behind it."""

    front: str
    admin: str
    servers: Sequence[VllmServer]
    session: aiohttp.ClientSession

    def ask(self, body: dict[str, Any]) -> StreamedRequest:
        return StreamedRequest.send(self.session, self.front, json.dumps(body).encode())

    async def facts(self, exchange: Exchange) -> dict[str, Any]:
        """The journal's word about a request that a client has seen the end of."""
        async with self.session.get(f"{self.admin}/deltafence/v1/requests/{exchange.request_id}") as answer:
            return dict(await answer.json())

    async def asked_and_other(self) -> tuple[VllmServer, VllmServer]:
        """The server that computes the request, once it has begun to, and the other one."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            running = [await server.running(self.session) for server in self.servers]
            if sorted(running) == [0, 1]:
                first, second = self.servers
                return (first, second) if running[0] else (second, first)
            await asyncio.sleep(POLL_S)
        raise AssertionError(f"no server has the request: {running} running")


@asynccontextmanager
async def open_gateway(
    servers: Sequence[VllmServer],
    session: aiohttp.ClientSession,
    directory: Path,
    policy: dict[str, Any],
    links: Sequence[HasUrl] = (),
) -> AsyncIterator[Gateway]:
    """A gateway for one test; ``links`` stand for the servers where there are any. No session of it may have broken."""
    policy_file, token_file, log = directory / "policy.json", directory / "token", directory / "up.log"
    policy_file.write_text(json.dumps(policy))
    token_file.write_text(TOKEN)
    options = ("--policy", str(policy_file), "--token-file", str(token_file), "--drain-limit", "1s")
    async with gateway(links or servers, log, *options) as (front, admin):
        await until_every_replica(may_repeat, admin)
        yield Gateway(front, admin, servers, session)
    text = log.read_text()
    assert "Traceback" not in text, text[-6000:]
    assert "the session broke" not in text, text[-6000:]


@contextmanager
def stopped(process: int) -> Iterator[None]:
    """SIGSTOP for the length of a block; what was killed meanwhile stays dead."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)


async def until_engine_idles(server: VllmServer) -> None:
    """Until the engine uses no CPU time any more. Asks nobody but the kernel, so the API server may be stopped."""
    process = server.engine_pid()
    deadline = time.monotonic() + DEADLINE_S
    looks, last = 0, -1
    while looks < IDLE_LOOKS:
        assert time.monotonic() < deadline, "the engine is still at work"
        await asyncio.sleep(POLL_S)
        used = _cpu_ticks(process)
        looks, last = (looks + 1 if used - last <= 1 else 0), used


def attempts_at(server: VllmServer) -> dict[str, str]:
    """Attempt id → state, as the server's guard has recorded it; also of a server that is stopped or was killed."""
    (database,) = server.folder.glob("*/*.db")
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return dict(connection.execute("SELECT attempt_id, state FROM attempts"))


async def until_state(server: VllmServer, attempt_id: str, state: str) -> None:
    """Until the guard has recorded this state: it does so when its app has ended, which is after the answer's last byte."""
    deadline = time.monotonic() + DEADLINE_S
    while (recorded := attempts_at(server)[attempt_id]) != state:
        assert time.monotonic() < deadline, f"{attempt_id} is {recorded}, not {state}"
        await asyncio.sleep(POLL_S)


def whole_text(exchange: Exchange, *, tokens: int) -> str:
    """The text of a whole answer. Raises AssertionError where it is anything else."""
    assert (exchange.status, exchange.broken) == (200, None), exchange
    events = read_events(exchange.body)
    assert not [event for event in events if terminal_error(Dialect.CHAT, event)], events[-2:]
    assert (events.count("[DONE]"), events.pop()) == (1, "[DONE]")
    finishes = [choice["finish_reason"] for event in events for choice in event["choices"] if choice["finish_reason"]]
    assert finishes == ["length"]
    assert [event["usage"]["completion_tokens"] for event in events if event.get("usage")] == [tokens]
    return streamed_text(Dialect.CHAT, events)


def interruption(exchange: Exchange) -> dict[str, Any]:
    """The terminal error of an answer that broke off after its first delta. Raises AssertionError where it is anything else."""
    assert (exchange.status, exchange.broken) == (200, None), exchange
    events = read_events(exchange.body)
    errors = [error for event in events if (error := terminal_error(Dialect.CHAT, event))]
    assert len(errors) == 1, events[-3:]
    assert terminal_error(Dialect.CHAT, events[-1]) is errors[0]
    deltas = [event for event in events if streamed_text(Dialect.CHAT, [event])]
    expected = {
        "code": "upstream_decode_interrupted",
        "request_id": exchange.request_id,
        "partial_output": True,
        "delivered_output_tokens": len(deltas),
        "retryable": False,
    }
    assert {name: errors[0][name] for name in expected} == expected
    assert errors[0]["message"]
    assert errors[0]["reason"]
    return errors[0]


def _cpu_ticks(process: int) -> int:
    """User and system time (proc_pid_stat(5)), which follow the last parenthesis of the name."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
