"""A rendered pod on this machine: its containers' own commands and arguments, with paths and ports moved to free ones.

Nothing else is changed, so what runs is what the chart says. Stopping follows the kubelet's order: preStop hooks and SIGTERM for
the containers, then SIGTERM for native sidecars.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from extproc.app.envoy_process import find_envoy
from extproc.links.listening import free_ports
from tests.chart.rendering import Object

START_LIMIT_S = 30.0
ENVOY_IN_ITS_IMAGE = "/usr/local/bin/envoy"


@dataclass(kw_only=True)
class LocalPod:
    """The running containers of one pod."""

    directory: Path
    ports: Mapping[int, int]
    """Container port to the port that stands for it here."""
    environment: MutableMapping[str, str] = field(default_factory=dict)
    """What its containers are told besides this process's own environment."""
    processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    def translated(self, word: str) -> str:
        """An argument with the pod's paths and ports replaced by this machine's."""
        for path in ("/run/deltafence", "/etc/deltafence"):
            word = word.replace(path, str(self.directory / path.rpartition("/")[2] / path.split("/")[1]))
        for inside, outside in self.ports.items():
            word = word.replace(f"0.0.0.0:{inside}", f"127.0.0.1:{outside}")
        return word

    def command_of(self, container: Object) -> list[str]:
        command = container.get("command", ["deltafence"])
        words = [*command, *container.get("args", [])]
        programs = {"deltafence": [sys.executable, "-m", "extproc.app"], ENVOY_IN_ITS_IMAGE: [str(find_envoy(None))]}
        return [*programs[words[0]], *map(self.translated, words[1:])]

    async def start(self, container: Object) -> asyncio.subprocess.Process:
        with (self.directory / f"{container['name']}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *self.command_of(container), stdout=log, stderr=log, env={**os.environ, **self.environment}
            )
        self.processes[container["name"]] = process
        return process

    async def run(self, spec: Object) -> None:
        """Init containers in their order, native sidecars left running, then the containers."""
        for container in spec.get("initContainers", []):
            process = await self.start(container)
            if container.get("restartPolicy") != "Always":
                assert await process.wait() == 0, self.logs()
        for container in spec["containers"]:
            await self.start(container)

    async def reachable(self, port: int) -> None:
        """Wait until something listens on a container port."""
        deadline = asyncio.get_running_loop().time() + START_LIMIT_S
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.ports[port])
            except OSError:
                assert asyncio.get_running_loop().time() < deadline, self.logs()
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return

    async def stop(self, spec: Object) -> None:
        """The kubelet's way; every container must end by itself."""
        await asyncio.gather(*(self._stop_container(container) for container in spec["containers"]))
        for container in spec.get("initContainers", []):
            process = self.processes[container["name"]]
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            await process.wait()

    async def _stop_container(self, container: Object) -> None:
        hook = container.get("lifecycle", {}).get("preStop", {}).get("exec")
        if hook is not None:
            runner = await asyncio.create_subprocess_exec(*self.command_of({"command": hook["command"], "args": []}))
            assert await runner.wait() == 0, self.logs()
        process = self.processes[container["name"]]
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0, self.logs()

    def logs(self) -> str:
        return "\n".join(f"== {log.name}\n{log.read_text()[-3000:]}" for log in sorted(self.directory.glob("*.log")))


@asynccontextmanager
async def local_pod(config: Mapping[str, str]) -> AsyncIterator[LocalPod]:
    """An empty pod whose ConfigMap holds ``config``; whatever still runs at the end is killed.

    In a directory of its own below /tmp: socket paths must be short.
    """
    directory = Path(tempfile.mkdtemp(prefix="pod-", dir="/tmp"))
    pod = LocalPod(directory=directory, ports=dict(zip((8080, 8081, 9090, 9091), free_ports(4), strict=True)))
    (directory / "deltafence" / "run").mkdir(parents=True)
    (directory / "deltafence" / "etc").mkdir()
    for name, text in config.items():
        (directory / "deltafence" / "etc" / name).write_text(text)
    try:
        yield pod
    finally:
        for process in pod.processes.values():
            if process.returncode is None:
                process.kill()
                await process.wait()
        shutil.rmtree(directory, ignore_errors=True)
