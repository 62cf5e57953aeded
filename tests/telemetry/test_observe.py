"""Mode ``observe`` on the real Envoy: the traffic does not change, and the journal says what ``enforce`` would have done."""

import asyncio
import os
import re
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from extproc.app.addresses import Address, ReplicaAddress
from extproc.app.children import start_child
from extproc.app.demonstration.apis import PATHS, request_body
from extproc.app.envoy_config import GENERATION_ROUTES, EnvoySettings, render
from extproc.app.envoy_process import EnvoyAdmin, envoy_command, find_envoy
from extproc.app.gateway_settings import OWN_COMMAND
from extproc.decision.policy import Mode
from extproc.journal.records import EventKind
from extproc.sim.faults import Fault, What, Where
from extproc.sim.process import ReplicaProcess, start_replica
from extproc.sim.settings import Settings
from extproc.sse.dialects import Dialect
from tests.telemetry.running import PATH, Running, running

LIMIT_S = 20.0
TOKENS = 8


@dataclass
class Watched:
    gateway: Running
    replicas: list[ReplicaProcess]
    client: httpx.AsyncClient

    async def journal(self, *, outcome: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until so many requests ended so, newest first; a cut shows only when Envoy has let go of its copies."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                found = await self.client.get(f"{self.gateway.admin}/deltafence/v1/requests?outcome={outcome}")
                if len(found.json()["requests"]) >= count:
                    return [await self.facts(line["request_id"]) for line in found.json()["requests"]]
                await asyncio.sleep(0.05)

    async def facts(self, request_id: str) -> dict[str, Any]:
        facts: dict[str, Any] = (await self.client.get(f"{self.gateway.admin}/deltafence/v1/requests/{request_id}")).json()
        return facts

    async def scrape(self) -> str:
        return (await self.client.get(f"{self.gateway.admin}/metrics")).text


@asynccontextmanager
async def watched(directory: Path, count: int = 2, **settings: Any) -> AsyncIterator[Watched]:
    policy = directory / "policy.yaml"
    policy.write_text("mode: observe\n")
    async with AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(start_replica(Settings(name=f"r{number}", tokens=TOKENS, **settings)))
            for number in range(count)
        ]
        options = [word for replica in replicas for word in ("--replica", replica.url)]
        gateway = await stack.enter_async_context(running(*options, "--policy", policy, directory=directory))
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=30))
        yield Watched(gateway, replicas, client)


def ended(facts: dict[str, Any]) -> dict[str, Any]:
    (event,) = [event for event in facts["events"] if event["kind"] == EventKind.ENDED]
    return dict(event["detail"])


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("dialect", list(Dialect))
async def test_answer_is_the_replicas_own_and_its_boundary_is_on_record(tmp_path, dialect: Dialect, stream: bool) -> None:
    async with watched(tmp_path, count=1) as stage:
        body = request_body(dialect, model="sim-model", stream=stream)
        headers = {"content-type": "application/json", "x-request-id": "0123456789abcdef"}  # vLLM makes its own id of it
        answer = await stage.client.post(stage.gateway.front + PATHS[dialect], content=body, headers=headers)
        direct = await stage.client.post(stage.replicas[0].url + PATHS[dialect], content=body, headers=headers)
        (facts,) = await stage.journal(outcome="completed")

    assert answer.status_code == direct.status_code == 200
    ours = {name for name in answer.headers if name.startswith("x-deltafence")}
    assert ours == set()
    assert set(answer.headers) - set(direct.headers) <= {"x-envoy-upstream-service-time"}
    moments = re.compile(rb'"created(_at)?":[0-9.]+')
    assert moments.sub(b"", answer.content) == moments.sub(b"", direct.content)
    assert facts["first_delta_sent"] is True
    assert facts["delivered_output_tokens"] >= TOKENS
    assert facts["traits"]["mode"] == "observe"
    assert ended(facts)["enforce_would"] == "same"
    assert facts["attempts"][0]["replica"] == stage.replicas[0].address


def faults(*places: tuple[Where, What]) -> list[Fault]:
    """Once each, and for a chat: health's own short answers are completions."""
    return [Fault(where=where, what=what, times=1, body_contains='"messages"') for where, what in places]


FAULTS: dict[str, tuple[list[Fault], str, str, str, str | None]] = {
    # name: faults, what happened, why, what enforce would have done, with which code
    "killed before the headers": (faults((Where.BEFORE_HEADERS, What.KILL)), "failed", "replica_gone", "repeat", None),
    "killed after the role chunk": (faults((Where.AFTER_ROLE, What.KILL)), "failed", "replica_gone", "repeat", None),
    "killed mid-decode": (
        faults((Where.MID_DECODE, What.KILL)),
        "interrupted",
        "replica_gone",
        "terminal_event",
        "upstream_decode_interrupted",
    ),
    "in-band error before the first delta": (
        faults((Where.AFTER_ROLE, What.ERROR_EVENT)),
        "failed",
        "engine_error",
        "repeat",
        None,
    ),
    "in-band error after it": (
        # Read together with the first delta, it would mean that nothing was delivered; so the client has the delta first.
        faults((Where.AFTER_FIRST_DELTA, What.HOLD), (Where.MID_DECODE, What.ERROR_EVENT)),
        "interrupted",
        "engine_error",
        "terminal_event",
        "upstream_decode_interrupted",
    ),
    "an end without a finish": (
        faults((Where.MID_DECODE, What.EOF)),
        "interrupted",
        "engine_error",
        "terminal_event",
        "upstream_decode_interrupted",
    ),
    "bytes that are not HTTP": (faults((Where.BEFORE_HEADERS, What.MALFORMED)), "failed", "replica_gone", "repeat", None),
    "a reset that proves nothing": (faults((Where.MID_DECODE, What.RESET)), "cancelled", "cut", "same", None),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_journal_says_what_enforce_would_have_done(tmp_path, name: str) -> None:
    armed, outcome, reason, would, code = FAULTS[name]
    async with watched(tmp_path) as stage:
        for replica in stage.replicas:
            await replica.set_faults(*armed)
        body = request_body(Dialect.CHAT, model="sim-model", stream=True)
        with suppress(httpx.HTTPError):  # the native path: a broken replica breaks the client's stream
            async with stage.client.stream("POST", stage.gateway.front + PATH, content=body) as answer:
                async for line in answer.aiter_lines():
                    if '"content":"r' in line and armed[0].what is What.HOLD:
                        await asyncio.gather(*[replica.release() for replica in stage.replicas])
        (facts,) = await stage.journal(outcome=outcome)
        scrape = await stage.scrape()

    end = ended(facts)
    assert (end["outcome"], end["reason"]) == (outcome, reason)
    assert (end["enforce_would"], end.get("enforce_code")) == (would, code)
    assert len(facts["attempts"]) == 1
    labels = f'{{code="{code or "none"}",outcome="{outcome}",route="chat",would="{would}"}}'
    assert f"deltafence_observed_requests_total{labels} 1.0" in scrape


async def test_the_only_replica_leaves_nobody_for_a_repeat(tmp_path) -> None:
    async with watched(tmp_path, count=1) as stage:
        await stage.replicas[0].set_faults(*faults((Where.AFTER_ROLE, What.ERROR_EVENT)))
        await stage.client.post(stage.gateway.front + PATH, content=request_body(Dialect.CHAT, model="sim-model", stream=True))
        (facts,) = await stage.journal(outcome="failed")
    end = ended(facts)
    assert (end["enforce_would"], end["enforce_code"]) == ("error", "no_healthy_replica")
    refused = [event["detail"]["gate"] for event in facts["events"] if event["kind"] == EventKind.REPEAT_REFUSED]
    assert refused == ["healthy_replica"]


async def test_client_that_leaves_is_a_cut_after_the_boundary(tmp_path) -> None:
    async with watched(tmp_path, count=1, token_interval_ms=1_000) as stage:
        body = request_body(Dialect.CHAT, model="sim-model", stream=True)
        async with stage.client.stream("POST", stage.gateway.front + PATH, content=body) as answer:
            async for line in answer.aiter_lines():
                if '"content":"r0' in line:
                    break
        (facts,) = await stage.journal(outcome="cancelled")
    assert facts["first_delta_sent"] is True
    assert facts["reason"] == "cut"


async def test_request_that_cannot_be_read_goes_its_way_unobserved(tmp_path) -> None:
    async with watched(tmp_path, count=1) as stage:
        answer = await stage.client.post(stage.gateway.front + PATH, content=b"[1]")
        whole = await stage.client.post(
            stage.gateway.front + PATH, content=request_body(Dialect.CHAT, model="sim-model", stream=False)
        )
        assert whole.status_code == 200
        await stage.journal(outcome="completed")
        listed = (await stage.client.get(f"{stage.gateway.admin}/deltafence/v1/requests")).json()["requests"]
    assert answer.status_code == 400
    assert len(listed) == 1


def processor_of(gateway: Running) -> int:
    """The processor's pid, found among the gateway's children."""
    children = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text().split()
    named = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in children}
    (pid,) = [pid for pid, command in named.items() if b"processor" in command]
    return pid


async def test_processor_that_stands_still_does_not_touch_the_traffic(tmp_path) -> None:
    async with watched(tmp_path, count=1) as stage:
        pid = processor_of(stage.gateway)
        body = request_body(Dialect.CHAT, model="sim-model", stream=True)
        lengths = []
        os.kill(pid, signal.SIGSTOP)
        try:
            for _ in range(5):
                answer = await stage.client.post(stage.gateway.front + PATH, content=body)
                lengths.append((answer.status_code, answer.content.count(b"data: "), answer.content.endswith(b"[DONE]\n\n")))
        finally:
            os.kill(pid, signal.SIGCONT)
    assert lengths == [(200, lengths[0][1], True)] * 5
    assert lengths[0][1] > TOKENS


async def test_processor_that_dies_mid_stream_does_not_touch_the_traffic(tmp_path) -> None:
    """Envoy alone, as a mesh runs it: `deltafence up` ends as a whole when one of its children dies."""
    async with AsyncExitStack() as stack:
        replica = await stack.enter_async_context(start_replica(Settings(tokens=TOKENS, token_interval_ms=100)))
        short = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="deltafence-test-", dir="/tmp")))
        settings = EnvoySettings(
            listen=(Address(host="127.0.0.1", port=0),),
            replicas=(ReplicaAddress.parse(replica.url),),
            processor_sockets=(short / "processor.sock",),
            egress_socket=short / "egress.sock",
            admin_socket=short / "admin.sock",
            routes=tuple(replace(route, default_mode=Mode.OBSERVE) for route in GENERATION_ROUTES),
        )
        (short / "envoy.yaml").write_text(render(settings))
        envoy = await start_child("Envoy", envoy_command(find_envoy(None), short / "envoy.yaml", concurrency=1))
        stack.push_async_callback(envoy.kill)
        admin = await stack.enter_async_context(EnvoyAdmin.at(settings.admin_socket))
        processor = await start_child(
            "processor",
            [
                *OWN_COMMAND,
                "--socket",
                str(short / "processor.sock"),
                "--egress",
                str(short / "egress.sock"),
                "--replica",
                replica.url,
            ],
        )
        stack.push_async_callback(processor.kill)
        async with asyncio.timeout(LIMIT_S):
            while not (short / "processor.sock").exists() or not await is_live(admin):
                await asyncio.sleep(0.05)
        front = f"http://127.0.0.1:{await admin.front_port()}"
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=30))
        body = request_body(Dialect.CHAT, model="sim-model", stream=True)

        async with client.stream("POST", front + PATH, content=body) as answer:
            pieces = answer.aiter_bytes()
            first = await anext(pieces)
            await processor.kill()
            rest = b"".join([piece async for piece in pieces])
        after = await client.post(front + PATH, content=body)

    assert (first + rest).endswith(b"[DONE]\n\n")
    assert after.content.endswith(b"[DONE]\n\n")


async def is_live(admin: EnvoyAdmin) -> bool:
    try:
        return await admin.is_live()
    except OSError:
        return False
