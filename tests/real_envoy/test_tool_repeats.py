"""R17.5 on the real Envoy: an agent's replica dies after its tool has acted, and the action is not done again (R11, R12, R18)."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from extproc.app.demonstration.stage import QUICK_HEALTH
from extproc.contract import headers as names
from extproc.links.listening import free_port
from extproc.sim.faults import What, Where
from extproc.sim.process import ReplicaProcess, start_replica
from extproc.sim.settings import Settings
from extproc.sim.tool import BODY, CALL_ID
from tests.real_envoy.durable import (
    Answer,
    Gateway,
    Scene,
    all_placeable,
    assert_one_publisher_at_a_time,
    chat,
    deltafence,
    durable_gateway,
    logged,
    stored,
    tool_calls,
    verified,
)
from tests.real_envoy.scripted_tool import ScriptedTool, scripted_tool

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]  # gateways start within it


@dataclass
class ToolStage:
    """Two gateways over one database: ``ledger`` serves the tool and protects it; ``refuse`` trusts no tool."""

    ledger: Gateway
    refuse: Gateway
    replicas: list[ReplicaProcess]
    tool: ScriptedTool
    tools_url: str
    database: str

    async def calls(self, request_id: str) -> list[dict]:
        """What the living replicas say of a request's calls; the log of one that was killed went with it."""
        records = [record for record in await logged(self.replicas) if record["request_id"] == request_id]
        return [call for record in records for call in record["tool_calls"]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> AsyncIterator[ToolStage]:
    folder: Path = tmp_path_factory.mktemp("tool-repeats")
    port = free_port()
    tools_url = f"http://127.0.0.1:{port}/tools/charge"
    async with AsyncExitStack() as stack:
        tool = await stack.enter_async_context(scripted_tool())
        common = {"tokens": 4, "tool_url": f"{tools_url}/act", "claims": str(folder)}
        replicas = [await stack.enter_async_context(start_replica(Settings(name=name, **common))) for name in ("a", "b")]
        options = ("--tool", f"charge=http://127.0.0.1:{tool.port},wait_ms=60000", "--tools-listen", f"127.0.0.1:{port}")
        ledger = durable_gateway(
            replicas, folder / "ledger", module_database_url, *options, *QUICK_HEALTH, policy={"tools": "ledger"}
        )
        refuse = durable_gateway(replicas, folder / "refuse", module_database_url, *QUICK_HEALTH, policy={"tools": "refuse"})
        yield ToolStage(
            ledger=await stack.enter_async_context(ledger),
            refuse=await stack.enter_async_context(refuse),
            replicas=replicas,
            tool=tool,
            tools_url=tools_url,
            database=module_database_url,
        )


@pytest_asyncio.fixture(loop_scope="module")
async def stage(running: ToolStage) -> AsyncIterator[ToolStage]:
    for replica in running.replicas:
        await (replica.reset() if replica.returncode is None else replica.restart())
    running.tool.acted.clear()
    await all_placeable(running.ledger, running.refuse)
    yield running
    running.tool.may_answer.set()
    assert (await verified(running.database))["ok"]


async def check_acted_once(stage: ToolStage, answer: Answer, attempts: int) -> None:
    """The client's answer, the journal, the tool's own log and the ledger tell one story of one request."""
    assert answer.is_whole, answer
    assert answer.attempts == attempts
    facts = await stage.ledger.facts(answer.request_id)
    assert (facts["outcome"], len(facts["attempts"])) == ("completed", attempts)
    assert_one_publisher_at_a_time(facts)
    # The text is of the last attempt's replica alone.
    last = next(replica for replica in stage.replicas if replica.address == facts["attempts"][-1]["replica"])
    assert answer.text.split() == [f"{last.settings.name}:{number}" for number in range(4)]
    (done,) = stage.tool.executions(answer.request_id)
    assert (done.method, done.path, json.loads(done.body), done.key) == ("POST", "/act", BODY, f"{answer.request_id}:{CALL_ID}")
    (call,) = [call for call in await tool_calls(stage.database) if call["request_id"] == answer.request_id]
    assert (call["call_key"], call["state"]) == (f"charge/{answer.request_id}:{CALL_ID}", "carried_out")


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_replica_killed_after_its_tool_ran_leaves_its_result_to_the_next_attempt(stage: ToolStage, stream: bool) -> None:
    scene = Scene(stage.replicas)
    await scene.arm(Where.AFTER_TOOL, What.KILL)
    answer = await stage.ledger.ask(chat(stream=stream, calls_tool=True), scene.headers)
    await check_acted_once(stage, answer, attempts=2)
    (second,) = await stage.calls(answer.request_id)
    assert (second["call_id"], second["status"], second["replayed"]) == (CALL_ID, 201, True)
    assert json.loads(second["answer"]) == {"action": len(stage.tool.log)}
    failed = next(
        event for event in (await stored(stage.database, answer.request_id))["events"] if event["kind"] == "attempt_failed"
    )
    assert failed["detail"]["cause"] == "replica_gone"


async def test_a_replica_killed_while_its_tool_works_leaves_its_result_too(stage: ToolStage) -> None:
    """Nobody has heard of the action when the second attempt asks for it; it waits for the first call's end."""
    stage.tool.may_answer.clear()
    asking = asyncio.create_task(stage.ledger.ask(chat(calls_tool=True)))
    await stage.tool.acted.wait()
    busy = [replica for replica in stage.replicas if any(record["ended"] is None for record in await logged([replica]))]
    (first,) = busy
    first.kill()
    (other,) = [replica for replica in stage.replicas if replica is not first]
    while not [record for record in await logged([other]) if record["slot_taken_at"] is not None]:
        await asyncio.sleep(0.02)
    stage.tool.may_answer.set()
    answer = await asking
    await check_acted_once(stage, answer, attempts=2)
    (second,) = await stage.calls(answer.request_id)
    assert (second["status"], second["replayed"]) == (201, True)


async def test_a_request_whose_tool_ran_is_not_repeated_where_tools_are_not_protected(stage: ToolStage) -> None:
    scene = Scene(stage.replicas)
    await scene.arm(Where.AFTER_TOOL, What.KILL)
    answer = await stage.refuse.ask(chat(calls_tool=True), scene.headers)
    error = answer.error
    assert (answer.status, error["code"], error["partial_output"]) == (502, "tool_side_effects_possible", False)
    assert (error["request_id"], error["attempts"], error["retryable"]) == (answer.request_id, 1, False)
    assert answer.headers[names.SHOULD_RETRY] == "false"
    facts = await stage.refuse.facts(answer.request_id)
    assert (facts["outcome"], facts["error_code"], len(facts["attempts"])) == ("failed", "tool_side_effects_possible", 1)
    (refused,) = [event for event in facts["events"] if event["kind"] == "repeat_refused"]
    assert refused["detail"]["gate"] == "tools"
    assert len(stage.tool.executions(answer.request_id)) == 1


async def test_a_request_without_a_tool_call_is_repeated_there(stage: ToolStage) -> None:
    scene = Scene(stage.replicas)
    await scene.arm(Where.IN_PREFILL, What.KILL)
    answer = await stage.refuse.ask(chat(), scene.headers)
    assert answer.is_whole
    assert answer.attempts == 2


async def test_a_keys_further_run_finds_the_first_runs_tool_call(stage: ToolStage) -> None:
    """Every replica dies, nothing is delivered; the client asks again with its key (R11)."""
    key = {names.IDEMPOTENCY_KEY: '"order 66"'}
    scene = Scene(stage.replicas)
    await scene.arm(Where.AFTER_TOOL, What.KILL, nth=None)
    failed = await stage.ledger.ask(chat(calls_tool=True), key | scene.headers)
    assert (failed.status, failed.error["code"]) == (502, "attempts_exhausted")
    for replica in stage.replicas:
        await replica.restart()
    await all_placeable(stage.ledger)
    again = await stage.ledger.ask(chat(calls_tool=True), key | scene.headers)
    assert again.request_id == failed.request_id
    assert again.is_whole
    assert len(stage.tool.executions(again.request_id)) == 1
    (call,) = await stage.calls(again.request_id)
    assert call["replayed"]
    facts = await stage.ledger.facts(again.request_id)
    assert [event["kind"] for event in facts["events"]].count("admitted") == 2
    assert (facts["outcome"], len(facts["attempts"])) == ("completed", 3)


async def test_a_keys_further_run_is_refused_where_tools_are_not_protected(stage: ToolStage) -> None:
    key = {names.IDEMPOTENCY_KEY: '"order 67"'}
    scene = Scene(stage.replicas)
    await scene.arm(Where.AFTER_TOOL, What.KILL)
    first = await stage.refuse.ask(chat(calls_tool=True), key | scene.headers)
    again = await stage.refuse.ask(chat(calls_tool=True), key | scene.headers)
    assert (again.status, again.error["code"]) == (502, "tool_side_effects_possible")
    assert again.request_id == first.request_id
    facts = await stage.refuse.facts(first.request_id)
    assert (facts["outcome"], facts["reason"]) == ("failed", "tool_side_effects_possible")
    assert len(facts["attempts"]) == 1
    refused = [event["detail"]["gate"] for event in facts["events"] if event["kind"] == "repeat_refused"]
    assert refused == ["tools", "tools"], "one of each run"
    assert len(stage.tool.executions(first.request_id)) == 1


async def test_an_operator_settles_what_nobody_knows(stage: ToolStage) -> None:
    """The tool breaks off in the middle of its answer: the second attempt's call is refused, until somebody has looked."""
    stage.tool.breaks_off = True
    scene = Scene(stage.replicas)
    await scene.arm(Where.AFTER_TOOL, What.KILL)
    answer = await stage.ledger.ask(chat(calls_tool=True), scene.headers)
    stage.tool.breaks_off = False
    assert answer.is_whole
    (refused,) = await stage.calls(answer.request_id)
    assert (refused["status"], json.loads(refused["answer"])["error"]["code"]) == (409, "outcome_unknown")
    assert len(stage.tool.executions(answer.request_id)) == 1
    key = f"charge/{answer.request_id}:{CALL_ID}"
    _, listed, _ = await deltafence("tools", "list", "--db", stage.database, "--state", "unknown")
    assert [line.split()[0] for line in listed.splitlines()] == [key]
    status, printed, _ = await deltafence("tools", "settle", key, "carried-out", "--db", stage.database)
    assert (status, printed) == (0, f"{key}: carried out\n")
    call = {names.REQUEST_ID: answer.request_id, names.TOOL_CALL: CALL_ID}
    settled = await stage.ledger.http.post(f"{stage.tools_url}/act", content=json.dumps(BODY), headers=call)
    assert (settled.status_code, settled.json()["error"]["code"]) == (409, "request_completed")
