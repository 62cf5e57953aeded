"""A running pod of the chart in front of two replicas, in any mode."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import aiohttp

from extproc.app.demonstration.apis import request_body
from extproc.app.demonstration.judge import Exchange
from extproc.app.demonstration.scenarios import SCENARIOS
from extproc.app.demonstration.stage import Delivered, break_first, may_repeat, mend, until_every_replica
from extproc.sim.process import ReplicaProcess, start_replica
from extproc.sim.settings import Settings
from extproc.sse.dialects import Dialect
from tests.chart.local_pod import ENVOY_IN_ITS_IMAGE, LocalPod, local_pod
from tests.chart.mesh import mesh_config, with_envoy_gateway, with_istio
from tests.chart.rendering import ENVOY_GATEWAY, Object, Rendered, pod_specs, render
from tests.kubernetes_api.server import ApiServer, api_server

TOKENS = 8
MODES: dict[str, dict[str, Any]] = {
    "standalone": {},
    "envoyGateway": ENVOY_GATEWAY,
    "istio": {"mode": "istio", "istio": {"routes": ["llm.chat.0", "llm.other.0"]}},
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

        async def send_by_route(_: Delivered) -> Exchange:
            body = request_body(Dialect.CHAT, model="sim-model", stream=True)
            headers = {"content-type": "application/json", "x-route": route}
            async with self.session.post(f"{self.url}/v1/chat/completions", data=body, headers=headers) as answer:
                return Exchange(status=answer.status, headers=dict(answer.headers), body=await answer.read())

        try:
            return await break_first(send_by_route, self.replicas[0], *ENGINE_ERROR.faults)
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

    async def metrics(self) -> str:
        """What Prometheus would read."""
        async with self.session.get(f"http://127.0.0.1:{self.pod.ports[9090]}/metrics") as answer:
            return await answer.text()

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


async def start_stage(mode: str, stack: AsyncExitStack, **values: Any) -> Stage:
    """``values`` are laid over those of the mode."""
    replicas = [await stack.enter_async_context(start_replica(Settings(name=name, tokens=TOKENS))) for name in ("a", "b")]
    rendered = render(
        {
            **MODES[mode],
            "upstream": {"urls": [replica.url for replica in replicas]},
            "drain": DRAIN,
            **values,
        }
    )
    api = await stack.enter_async_context(api_server())
    for name in ("chat", "other"):
        api.put(HTTP_ROUTES, {"metadata": {"name": name, "namespace": "llm"}})
    pod = await stack.enter_async_context(local_pod(rendered.one("ConfigMap")["data"]))
    pod.environment["DELTAFENCE_KUBERNETES_API"] = api.url
    if values.get("journal", {}).get("store") == "sqlite":
        pod.environment["DELTAFENCE_JOURNAL"] = str(pod.directory / "journal.db")
    spec = spec_of(mode, rendered, pod, replicas)
    await pod.run(spec)
    for port in (8080, 9090):
        await pod.reachable(port)
    await until_every_replica(may_repeat, f"http://127.0.0.1:{pod.ports[9090]}")
    session = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)))
    return Stage(pod=pod, api=api, spec=spec, replicas=replicas, session=session)
