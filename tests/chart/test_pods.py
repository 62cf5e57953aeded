"""The chart's pods on the real Envoy: the demo's faults in every mode, and a stop that lets a running stream end (R17, R33)."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from extproc.app.demonstration.apis import request_body
from extproc.app.demonstration.judge import Exchange, judge, read_events
from extproc.app.demonstration.scenarios import SCENARIOS, Scenario
from extproc.app.demonstration.stage import break_first, mend, send
from extproc.sim.process import ReplicaProcess, start_replica
from extproc.sim.settings import Settings
from extproc.sse.dialects import Dialect
from tests.chart.local_pod import ENVOY_IN_ITS_IMAGE, LocalPod, local_pod
from tests.chart.mesh import mesh_config, with_envoy_gateway, with_istio
from tests.chart.rendering import ENVOY_GATEWAY, Object, Rendered, pod_specs, render
from tests.kubernetes_api.server import ApiServer, api_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKENS = 8
MODES: dict[str, dict[str, Any]] = {
    "standalone": {},
    "envoyGateway": ENVOY_GATEWAY,
    "istio": {"mode": "istio", "istio": {"routes": ["chat", "other"]}},
}
MESHES = {"envoyGateway": ("envoy-gateway", with_envoy_gateway), "istio": ("istio", with_istio)}
HTTP_ROUTES = "/apis/gateway.networking.k8s.io/v1/httproutes"
ENGINE_ERROR = next(scenario for scenario in SCENARIOS if scenario.name == "in-band error + [DONE] before the first delta")
DRAIN = {"settleSeconds": 1, "limitSeconds": 20, "endSeconds": 5}


@dataclass(kw_only=True)
class Stage:
    """A running pod of one mode, in front of two replicas."""

    pod: LocalPod
    api: ApiServer
    spec: Object
    replicas: list[ReplicaProcess]
    session: aiohttp.ClientSession

    async def broken(self, route: str) -> Exchange:
        """A request by a route whose first attempt meets an engine error before the first delta."""

        async def send_by_route() -> Exchange:
            body = request_body(Dialect.CHAT, model="sim-model", stream=True)
            headers = {"content-type": "application/json", "x-route": route}
            async with self.session.post(f"{self.url}/v1/chat/completions", data=body, headers=headers) as answer:
                return Exchange(status=answer.status, headers=dict(answer.headers), body=await answer.read())

        try:
            return await break_first(send_by_route, self.replicas[0], ENGINE_ERROR.fault)
        finally:
            await mend(self.replicas)

    async def in_force(self, route_object: str, annotations: dict[str, str]) -> None:
        await self._until(lambda entry: entry["annotations_in_force"] == annotations, route_object)

    async def refused(self, route_object: str) -> None:
        await self._until(lambda entry: bool(entry["refused"]), route_object)

    async def _until(self, condition: Callable[[dict[str, Any]], bool], route_object: str) -> None:
        """Until the processor says so of an object."""
        async with asyncio.timeout(30):
            while True:
                async with self.session.get(f"http://127.0.0.1:{self.pod.ports[9090]}/deltafence/v1/routes") as answer:
                    objects = {entry["object"]: entry for entry in (await answer.json())["objects"]}
                if route_object in objects and condition(objects[route_object]):
                    return
                await asyncio.sleep(0.02)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.pod.ports[8080]}"


def spec_of(mode: str, rendered: Rendered, pod: LocalPod, replicas: list[ReplicaProcess]) -> Object:
    """The pod's spec; where the mesh runs Envoy, with a container for that Envoy."""
    spec = pod_specs(rendered)[0]
    if mode == "standalone":
        return spec
    mesh, apply = MESHES[mode]
    config = json.dumps(apply(mesh_config(mesh, pod.ports[8080], [replica.address for replica in replicas]), rendered))
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
    api = await stack.enter_async_context(api_server())
    for name in ("chat", "other"):
        api.put(HTTP_ROUTES, {"metadata": {"name": name, "namespace": "llm"}})
    environment = {"DELTAFENCE_KUBERNETES_API": api.url}
    pod = await stack.enter_async_context(local_pod(rendered.one("ConfigMap")["data"], environment))
    spec = spec_of(mode, rendered, pod, replicas)
    await pod.run(spec)
    for port in (8080, 9090):
        await pod.reachable(port)
    session = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)))
    return Stage(pod=pod, api=api, spec=spec, replicas=replicas, session=session)


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
        assert [event["reason"] for event in stage.api.created] == ["PolicyRefused"]
    finally:
        stage.api.put(HTTP_ROUTES, {"metadata": {"name": "chat", "namespace": "llm"}})


async def test_what_the_autoscaler_asks_for_is_measured(stage: Stage) -> None:
    async with stage.session.get(f"http://127.0.0.1:{stage.pod.ports[9090]}/metrics") as answer:
        page = await answer.text()
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
