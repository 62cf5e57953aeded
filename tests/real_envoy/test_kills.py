"""SIGKILL of the real processor process, at every statement of a request's life and of a tool call's (R9, R11, R12).

The client asks through one gateway, whose processor dies; its repeat goes through another gateway over the same database. What it
is told must agree with what it has really received, and the stored story must break no promise.
"""

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest

from extproc.app.addresses import Address, ReplicaAddress
from extproc.app.envoy_config import ToolEndpoint
from extproc.contract import headers as names
from extproc.decision.tool_call import ToolRoute
from extproc.links.listening import free_ports
from extproc.sim.faults import What, Where
from extproc.sim.process import ReplicaProcess, start_replica
from extproc.sim.settings import Settings
from tests.crash.test_crash import histories_of
from tests.real_envoy.durable import POLICY, Answer, Gateway, Scene, chat, durable_gateway, stored, verified
from tests.real_envoy.frail import Frail
from tests.real_envoy.scripted_tool import ScriptedTool, scripted_tool

KILLED = (sys.executable, "-m", "tests.real_envoy.killed_processor")
SHORT_LEASES = {"lease": {"ttl_ms": 1_000, "cancel_timeout_ms": 200}, "journal": {"replay": True}, "tools": "ledger"}
REQUEST = "req_01J00000000000000000000000"


@dataclass
class Pair:
    """Two gateways over one database."""

    frail: Frail
    other: Gateway
    replicas: list[ReplicaProcess]
    tool: ScriptedTool
    other_tools: str
    database: str

    async def repeat(self, send: Callable[[], Awaitable[Answer]]) -> Answer:
        """Ask again, until the dead processor's name has expired."""
        async with asyncio.timeout(60):
            while (answer := await send()).status == 409 and answer.error["code"] == "request_in_progress":
                await asyncio.sleep(0.1)
        return answer


@pytest.fixture
async def pair(start_envoy, database_url: str, tmp_path: Path, run_directory: Path) -> AsyncIterator[Pair]:
    ports = dict(zip(("admin", "tools", "other tools"), free_ports(3), strict=True))
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps(POLICY | SHORT_LEASES))
    async with AsyncExitStack() as stack:
        tool = await stack.enter_async_context(scripted_tool())
        other_tools = f"http://127.0.0.1:{ports['other tools']}/tools/charge"
        settings = {"tokens": 4, "claims": str(tmp_path), "tool_url": f"{other_tools}/act"}
        replicas = [await stack.enter_async_context(start_replica(Settings(name=name, **settings))) for name in ("a", "b")]
        served = f"charge=http://127.0.0.1:{tool.port},wait_ms=100"
        options = ("--tool", served, "--tools-listen", f"127.0.0.1:{ports['other tools']}")
        other = await stack.enter_async_context(
            durable_gateway(replicas, tmp_path / "other", database_url, *options, policy=SHORT_LEASES)
        )
        endpoint = ToolEndpoint(
            route=ToolRoute(name="charge", wait_ms=100),
            address=ReplicaAddress(scheme="http", host="127.0.0.1", port=tool.port),
        )
        envoy = await start_envoy(
            [ReplicaAddress.parse(replica.url) for replica in replicas],
            tools=(endpoint,),
            tools_listen=Address(host="127.0.0.1", port=ports["tools"]),
        )
        frail = Frail(
            front=envoy.url,
            admin=f"http://127.0.0.1:{ports['admin']}",
            log=tmp_path,
            http=await stack.enter_async_context(httpx.AsyncClient(timeout=60)),
            tools=f"http://127.0.0.1:{ports['tools']}/tools/charge",
            options=(
                *("--socket", str(run_directory / "p1.sock"), "--egress", str(run_directory / "egress.sock")),
                *(word for replica in replicas for word in ("--replica", replica.url)),
                *("--admin", f"127.0.0.1:{ports['admin']}", "--policy", str(policy)),
                *("--journal", database_url, "--takeover-after", "1s"),
            ),
        )
        yield Pair(frail, other, replicas, tool, other_tools, database_url)
        if frail.processor is not None:
            await frail.kill()


NO_ANSWER = Answer(status=0, headers=httpx.Headers(), body=b"", cut=True)
Checked = Callable[[], Awaitable[str]]
"""What is to be checked after a kill; gives one word on how the repeat ended."""


async def try_to_ask(gateway: Gateway, body: bytes, headers: dict[str, str]) -> Answer:
    """Ask a gateway whose processor dies; an answer that never began has status 0."""
    try:
        return await gateway.ask(body, headers)
    except httpx.HTTPError:
        return NO_ANSWER


def received(answer: Answer) -> bool:
    """Whether the client has seen anything of an answer."""
    return answer.status == 200 and bool(answer.body)


async def killed_at_every_statement(pair: Pair, mark: str, live: Callable[[int], Awaitable[Checked]]) -> tuple[int, set[str]]:
    """Call ``live`` with 1, 2, ... as the processor dies at that statement, until it survives: how often, and what it gave.

    The next processor is started while the dead one's name expires.
    """
    outcomes = set()
    await pair.frail.start(*KILLED, "1", mark)
    for step in itertools.count(1):
        check = await live(step)
        if await pair.frail.stop():
            return step, {*outcomes, await check()}
        outcome, _ = await asyncio.gather(check(), pair.frail.start(*KILLED, str(step + 1), mark))
        outcomes.add(outcome)
    raise AssertionError("unreachable")


@pytest.mark.timeout(600)
async def test_after_a_kill_at_any_statement_of_a_request_its_repeat_gets_the_truth(pair: Pair) -> None:
    async def live(step: int) -> Checked:
        scene = Scene(pair.replicas)
        await scene.arm(Where.IN_PREFILL, What.RESET)
        headers = {names.IDEMPOTENCY_KEY: f'"step {step}"'} | scene.headers
        first = await try_to_ask(pair.frail, chat(), headers)
        return partial(check, step, first, headers)

    async def check(step: int, first: Answer, headers: dict[str, str]) -> str:
        repeat = await pair.repeat(lambda: pair.other.ask(chat(), headers))
        where = f"step {step}: first {first}, then {repeat}"
        assert await histories_of(pair.database) == [], where
        if repeat.replayed:
            assert repeat.is_whole, where
            assert repeat.body.startswith(first.body) or not received(first), where
            return "replayed"
        assert not (received(first) and first.is_whole), where
        if repeat.status == 409:
            error = repeat.error
            assert (error["code"], error["reason"]) == ("partial_output_exists", "processor_lost"), where
            assert error["delivered_output_tokens_source"] == "unknown", where
            return "partial"
        assert repeat.is_whole, where
        assert not received(first), where
        return "ran"

    steps, outcomes = await killed_at_every_statement(pair, "INSERT INTO idempotency_keys", live)
    assert steps > 15
    assert outcomes == {"ran", "partial", "replayed"}
    assert (await verified(pair.database))["running"] == 0


@pytest.mark.timeout(600)
async def test_after_a_kill_at_any_statement_of_a_tool_call_the_tool_has_acted_once(pair: Pair) -> None:
    async def call(url: str, step: int) -> Answer:
        headers = {names.REQUEST_ID: REQUEST, names.TOOL_CALL: f"call_{step}"}
        try:
            response = await pair.other.http.post(f"{url}/act", content=b"{}", headers=headers)
        except httpx.HTTPError:
            return NO_ANSWER
        return Answer(status=response.status_code, headers=response.headers, body=response.content)

    async def live(step: int) -> Checked:
        return partial(check, step, await call(pair.frail.tools, step))

    async def check(step: int, first: Answer) -> str:
        repeat = await pair.repeat(lambda: call(pair.other_tools, step))
        acted = [execution for execution in pair.tool.log if execution.headers[names.TOOL_CALL] == f"call_{step}"]
        where = f"step {step}: first {first}, then {repeat}, acted {len(acted)} times"
        assert len(acted) <= 1, where
        if repeat.status == 409:
            assert repeat.error["code"] == "outcome_unknown", where
            assert first.status != 201, where
            return "unknown"
        assert (repeat.status, len(acted)) == (201, 1), where
        assert repeat.replayed or first.status != 201, where
        return "replayed" if repeat.replayed else "ran"

    steps, outcomes = await killed_at_every_statement(pair, "INSERT INTO tool_calls", live)
    assert steps > 3
    assert outcomes == {"ran", "unknown", "replayed"}


@pytest.mark.timeout(300)
async def test_a_killed_processors_requests_end_in_words_whatever_their_phase(pair: Pair) -> None:
    """One kill; one request in prefill, one in decode, one whose tool works, one that is complete."""
    await pair.frail.start()
    keys = {phase: {names.IDEMPOTENCY_KEY: f'"{phase}"'} for phase in ("whole", "prefill", "decode", "tool")}
    whole = await pair.frail.ask(chat(), keys["whole"])
    pair.tool.may_answer.clear()
    calling = asyncio.create_task(try_to_ask(pair.frail, chat(calls_tool=True), keys["tool"]))
    await pair.tool.acted.wait()
    prefill, decode = Scene(pair.replicas), Scene(pair.replicas)
    await prefill.arm(Where.IN_PREFILL, What.HOLD)
    waiting = asyncio.create_task(try_to_ask(pair.frail, chat(), keys["prefill"] | prefill.headers))
    await prefill.struck()
    await decode.arm(Where.MID_DECODE, What.HOLD, deltas=2)
    async with pair.frail.asking(chat(), keys["decode"] | decode.headers) as asking:
        await asking.read_until(b':1 "')
        await pair.frail.kill()
        cut = await asking.read_to_end()
    assert cut.cut
    assert [token.partition(":")[2] for token in cut.text.split()] == ["0", "1"]
    for lost in await asyncio.gather(calling, waiting):
        assert (lost.status, lost.error["code"], lost.error["partial_output"]) == (503, "processor_unavailable", False)
    for replica in pair.replicas:
        await replica.release()
    pair.tool.may_answer.set()

    repeats = {
        phase: await pair.repeat(lambda phase=phase: pair.other.ask(chat(calls_tool=phase == "tool"), keys[phase]))
        for phase in keys
    }
    assert repeats["whole"].replayed
    assert repeats["whole"].body == whole.body
    assert repeats["prefill"].is_whole
    assert repeats["decode"].error["code"] == "partial_output_exists"
    assert repeats["decode"].error["reason"] == "processor_lost"
    assert repeats["tool"].is_whole
    (done,) = pair.tool.executions(repeats["tool"].request_id)
    assert done.key == f"{repeats['tool'].request_id}:call_07"
    assert (await verified(pair.database))["running"] == 0

    # The killed one, started again, tells the same of them all.
    await pair.frail.start()
    for repeat in repeats.values():
        facts = await pair.frail.facts(repeat.request_id)
        assert facts == await stored(pair.database, repeat.request_id)
    kinds = [event["kind"] for event in (await stored(pair.database, repeats["prefill"].request_id))["events"]]
    assert kinds[:4] == ["admitted", "attempt_started", "response_started", "ended"]
    assert kinds.count("admitted") == 2
