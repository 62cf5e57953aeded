"""The chart's pods on the real Envoy: the demo's faults in every mode, and a stop that lets a running stream end (R17, R33)."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

import aiohttp
import pytest
import pytest_asyncio

from extproc.app.demonstration.judge import judge, read_events
from extproc.app.demonstration.run import break_first, mend, send
from extproc.app.demonstration.scenarios import SCENARIOS, Scenario
from extproc.sim.process import ReplicaProcess, start_replica
from extproc.sim.settings import Settings
from extproc.sse.dialects import Dialect
from tests.chart.local_pod import ENVOY_IN_ITS_IMAGE, LocalPod, local_pod
from tests.chart.mesh import mesh_config, with_envoy_gateway, with_istio
from tests.chart.rendering import ENVOY_GATEWAY, ISTIO, Object, Rendered, pod_specs, render

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKENS = 8
MODES = {"standalone": {}, "envoyGateway": ENVOY_GATEWAY, "istio": ISTIO}
DRAIN = {"settleSeconds": 1, "limitSeconds": 20, "endSeconds": 5}


@dataclass(kw_only=True)
class Stage:
    """A running pod of one mode, in front of two replicas."""

    pod: LocalPod
    spec: Object
    replicas: list[ReplicaProcess]
    session: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.pod.ports[8080]}"


def spec_of(mode: str, rendered: Rendered, pod: LocalPod, replicas: list[ReplicaProcess]) -> Object:
    """The pod's spec; where the mesh runs Envoy, with a container for that Envoy."""
    spec = pod_specs(rendered)[0]
    if mode == "standalone":
        return spec
    apply = {"envoyGateway": with_envoy_gateway, "istio": with_istio}[mode]
    config = json.dumps(apply(mesh_config(pod.ports[8080], [replica.address for replica in replicas]), rendered))
    (pod.directory / "mesh.json").write_text(pod.translated(config))
    envoy = {
        "name": "envoy",
        "command": [ENVOY_IN_ITS_IMAGE],
        "args": ["--config-path", str(pod.directory / "mesh.json"), "--log-level", "warning", "--disable-hot-restart"],
        "restartPolicy": "Always",
    }
    ours = [container for container in spec["containers"] if container["name"].startswith("processor")]
    return {"initContainers": [envoy], "containers": ours}


async def start_stage(mode: str, stack: AsyncExitStack) -> Stage:
    replicas = [await stack.enter_async_context(start_replica(Settings(name=name, tokens=TOKENS))) for name in ("a", "b")]
    rendered = render(
        {
            **MODES[mode],
            "upstream": {"urls": [replica.url for replica in replicas]},
            "drain": DRAIN,
            "policy": {"tools": "ledger"},
        }
    )
    pod = await stack.enter_async_context(local_pod(rendered.one("ConfigMap")["data"]))
    spec = spec_of(mode, rendered, pod, replicas)
    await pod.run(spec)
    for port in (8080, 9090):
        await pod.reachable(port)
    session = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)))
    return Stage(pod=pod, spec=spec, replicas=replicas, session=session)


@pytest_asyncio.fixture(params=MODES, scope="module", loop_scope="module")
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        yield await start_stage(request.param, stack)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name.replace(" ", "-"))
async def test_the_demos_faults_end_as_they_must(stage: Stage, scenario: Scenario) -> None:
    try:
        exchange = await break_first(partial(send, stage.session, stage.url, Dialect.CHAT), stage.replicas[0], scenario.fault)
    finally:
        await mend(stage.replicas)
    finding = judge(scenario, Dialect.CHAT, exchange, stream=True, tokens=TOKENS)
    assert finding.problems == (), stage.pod.logs()


async def test_what_is_no_generation_passes_through(stage: Stage) -> None:
    async with stage.session.get(f"{stage.url}/v1/models") as answer:
        assert answer.status == 200, stage.pod.logs()
        assert (await answer.json())["data"][0]["id"] == "sim-model"


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
