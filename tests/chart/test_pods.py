"""The chart's pods on the real Envoy: the demo's faults in every mode, and a stop that lets a running stream end (R17, R33)."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial

import pytest
import pytest_asyncio
from aiohttp import web

from extproc.app.demonstration.judge import judge, read_events
from extproc.app.demonstration.scenarios import SCENARIOS, Scenario
from extproc.app.demonstration.stage import break_first, mend, send
from extproc.sse.dialects import Dialect
from tests.chart.pod_stage import HTTP_ROUTES, MESHES, MODES, TOKENS, Stage, start_stage
from tests.chart.rendering import render

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(params=MODES, scope="module", loop_scope="module")
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        yield await start_stage(request.param, stack)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name.replace(" ", "-"))
async def test_the_demos_faults_end_as_they_must(stage: Stage, scenario: Scenario) -> None:
    ask = partial(send, stage.session, stage.url, Dialect.CHAT)
    try:
        exchange = await break_first(ask, stage.replicas[0], *scenario.faults)
    finally:
        await mend(stage.replicas)
    finding = judge(scenario, Dialect.CHAT, exchange, stream=True, tokens=TOKENS)
    assert finding.problems == (), stage.pod.logs()


@pytest.mark.parametrize("stage", MESHES, indirect=True)
async def test_an_annotation_changes_its_route_and_no_other_without_a_restart(stage: Stage) -> None:
    """`kubectl annotate httproute chat deltafence.io/before-first-delta-action=fail`: chat is not repeated any more, other is."""
    annotations = {"deltafence.io/before-first-delta-action": "fail"}
    stage.api.put(HTTP_ROUTES, {"metadata": {"name": "chat", "namespace": "llm", "annotations": annotations}})
    await stage.in_force("HTTPRoute llm/chat", annotations)
    try:
        refused = await stage.broken("chat")
        repeated = await stage.broken("other")
        assert (refused.status, refused.attempts) == (502, 1), stage.pod.logs()
        assert (repeated.status, repeated.attempts) == (200, 2), stage.pod.logs()

        wrong = {"deltafence.io/before-first-delta-action": "retry"}
        stage.api.put(HTTP_ROUTES, {"metadata": {"name": "chat", "namespace": "llm", "annotations": wrong}})
        await stage.refused("HTTPRoute llm/chat")
        assert (await stage.broken("chat")).attempts == 1, "a wrong value never weakens the policy"
        async with asyncio.timeout(30):  # it is written beside the refusal, not before it shows
            while not stage.api.created:
                await asyncio.sleep(0.02)
        assert [event["reason"] for event in stage.api.created] == ["PolicyRefused"]
    finally:
        stage.api.put(HTTP_ROUTES, {"metadata": {"name": "chat", "namespace": "llm"}})


async def test_what_the_autoscaler_asks_for_is_measured(stage: Stage) -> None:
    page = await stage.metrics()
    asked = render({"autoscaling": {"enabled": True}}).one("HorizontalPodAutoscaler")["spec"]["metrics"][0]["pods"]["metric"][
        "name"
    ]
    assert f"\n# TYPE {asked} gauge\n" in page


async def test_what_is_no_generation_passes_through(stage: Stage) -> None:
    async with stage.session.get(f"{stage.url}/v1/models") as answer:
        assert answer.status == 200, stage.pod.logs()
        assert (await answer.json())["data"][0]["id"] == "sim-model"


async def test_what_helm_test_runs_passes(stage: Stage) -> None:
    pod = render().one("Pod", "one-stream")["spec"]["containers"][0]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *pod["command"][1:],
        env={**os.environ, "GATEWAY": stage.url, "MODEL": ""},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said
    assert b"model sim-model" in said


async def test_a_stop_lets_a_running_stream_end() -> None:
    async with AsyncExitStack() as stack:
        stage = await start_stage("standalone", stack)
        body = {"model": "sim-model", "stream": True, "messages": [{"role": "user", "content": "Take your time."}]}
        async with stage.session.post(f"{stage.url}/v1/chat/completions", json=body) as answer:
            first = await answer.content.readany()
            stopping = asyncio.create_task(stage.pod.stop(stage.spec))
            rest = await answer.content.read()
        await stopping
        assert read_events(first + rest)[-1] == "[DONE]", stage.pod.logs()
        assert all(process.returncode is not None for process in stage.pod.processes.values())


@pytest.mark.parametrize("mode", ["standalone", "istio"])
async def test_a_default_policy_that_watches_leaves_the_traffic_alone_and_writes_down_what_it_saw(mode: str) -> None:
    async with AsyncExitStack() as stack:
        stage = await start_stage(mode, stack, policy={"mode": "observe"})
        exchange = await send(stage.session, stage.url, Dialect.CHAT)
        assert exchange.status == 200, stage.pod.logs()
        assert not any(name.lower().startswith("x-deltafence") for name in exchange.headers)
        async with asyncio.timeout(30):
            while not re.search(
                r'^deltafence_observed_requests_total{[^}]*would="same"[^}]*} [1-9]', await stage.metrics(), re.M
            ):
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("mode", MODES)
async def test_a_default_policy_that_is_off_leaves_the_traffic_alone(mode: str) -> None:
    async with AsyncExitStack() as stack:
        stage = await start_stage(mode, stack, policy={"mode": "off"})
        exchange = await send(stage.session, stage.url, Dialect.CHAT)
        assert exchange.status == 200, stage.pod.logs()
        assert read_events(exchange.body)[-1] == "[DONE]"


async def test_a_tool_of_the_values_is_called_once_for_one_key() -> None:
    calls = []

    async def carry_out(request: web.Request) -> web.Response:
        calls.append(request.path)
        return web.json_response({"sent": len(calls)})

    async with AsyncExitStack() as stack:
        tool = web.AppRunner(application := web.Application())
        application.router.add_post("/send", carry_out)
        await tool.setup()
        stack.push_async_callback(tool.cleanup)
        await web.TCPSite(tool, "127.0.0.1", 0).start()
        host, port = tool.addresses[0]
        tools = {"routes": [{"name": "mail", "url": f"http://{host}:{port}", "require_key": True, "wait_ms": 5000}]}
        stage = await start_stage("standalone", stack, tools=tools, journal={"store": "sqlite"}, networkPolicy={"enabled": False})
        await stage.pod.reachable(8081)
        answers = []
        for _ in range(2):
            url = f"http://127.0.0.1:{stage.pod.ports[8081]}/tools/mail/send"
            async with stage.session.post(url, json={"to": "a"}, headers={"idempotency-key": "one"}) as answer:
                answers.append((answer.status, await answer.json(), answer.headers.get("x-deltafence-replayed")))
        assert answers == [(200, {"sent": 1}, None), (200, {"sent": 1}, "true")], stage.pod.logs()
        assert calls == ["/send"]
