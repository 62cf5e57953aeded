"""One real vLLM server with the guard, as a child process that can't be left behind."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from extproc.contract import headers
from extproc.contract.guard import CANCEL_PATH_FORMAT, HEARTBEAT_PATH
from extproc.links.listening import free_port

TOKEN = "a-shared-secret"
MODEL = "tiny"
READY_DEADLINE_S = 300
CHAT = "/v1/chat/completions"
SECRET = {headers.TOKEN: TOKEN}


@dataclass(slots=True, kw_only=True)
class VllmServer:
    """``vllm serve`` on loopback. Its whole process group ends with ``stop``."""

    environment: Path
    """vLLM's virtual environment."""
    model: Path
    folder: Path
    """For its log and the guard's state."""
    port: int
    options: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / f"vllm-{self.port}.log"

    def start(self) -> None:
        command = [
            *(self.environment / "bin" / "vllm", "serve", self.model, "--served-model-name", MODEL),
            *("--host", "127.0.0.1", "--port", self.port, "--enforce-eager", "--dtype", "float32"),
            # Small steps, so that a long prompt's prefill lasts long enough to be interrupted.
            *("--max-model-len", 32_768, "--max-num-batched-tokens", 256, "--no-enable-prefix-caching"),
            *("--middleware", "extproc.worker.LeaseGuard", *self.options),
        ]
        environment = os.environ | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DELTAFENCE_TOKEN": TOKEN,
            "DELTAFENCE_STATE_DIR": str(self.folder),
        }
        # Not from this checkout: only the installed wheel may be found.
        environment.pop("PYTHONPATH", None)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [str(part) for part in command],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self.folder,
                process_group=0,
            )

    def stop(self) -> None:
        """SIGKILL to the group: also what is stopped or hangs must end."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    async def wait_until_ready(self, session: aiohttp.ClientSession) -> None:
        """Raises AssertionError with the end of the log."""
        deadline = time.monotonic() + READY_DEADLINE_S
        while time.monotonic() < deadline:
            assert self.process is not None
            if self.process.poll() is not None:
                break
            if await self.is_ready(session):
                return
            await asyncio.sleep(0.5)
        raise AssertionError(f"vLLM did not start:\n{self.log.read_text()[-4000:]}")

    async def is_ready(self, session: aiohttp.ClientSession) -> bool:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with session.get(f"{self.url}/v1/models", timeout=aiohttp.ClientTimeout(total=2)) as response:
                return response.status == 200
        return False

    def engine_pid(self) -> int:
        """The process that computes, a descendant of the API server."""
        assert self.process is not None
        for entry in Path("/proc").iterdir():
            if (
                entry.name.isdigit()
                and _name_of(entry).startswith("VLLM::Engine")
                and os.getpgid(int(entry.name)) == self.process.pid
            ):
                return int(entry.name)
        raise AssertionError("no engine process")

    async def running(self, session: aiohttp.ClientSession) -> float:
        """``vllm:num_requests_running`` over all engines."""
        async with session.get(f"{self.url}/metrics") as response:
            page = await response.text()
        values = re.findall(r"^vllm:num_requests_running\{[^}]*\} (\S+)$", page, re.MULTILINE)
        assert values, page[:1000]
        return sum(map(float, values))

    async def wait_until_running(self, session: aiohttp.ClientSession, count: int, *, deadline_s: float = 60) -> None:
        """Raises AssertionError with the last value seen."""
        deadline = time.monotonic() + deadline_s
        while (last := await self.running(session)) != count:
            assert time.monotonic() < deadline, f"{last} requests running, not {count}"
            await asyncio.sleep(0.05)

    async def stamp(self, session: aiohttp.ClientSession) -> dict[str, Any]:
        """A fresh one, from a heartbeat that renews nothing."""
        body = {"processor_id": "test", "leases": []}
        async with session.post(self.url + HEARTBEAT_PATH, headers=SECRET, json=body) as response:
            assert response.status == 200, await response.text()
            stamp: dict[str, Any] = await response.json()
            return stamp

    async def lease(self, session: aiohttp.ClientSession, attempt_id: str, *, ttl_ms: int) -> dict[str, str]:
        """The headers of an attempt whose lease begins now."""
        stamp = await self.stamp(session)
        return SECRET | {
            headers.ATTEMPT_ID: attempt_id,
            headers.BOOT_ID: str(stamp["boot_id"]),
            headers.VALID_UNTIL_MS: str(int(stamp["now_ms"]) + ttl_ms),
        }

    async def cancel(self, session: aiohttp.ClientSession, attempt_id: str) -> dict[str, Any]:
        async with session.post(self.url + CANCEL_PATH_FORMAT.format(attempt_id=attempt_id), headers=SECRET) as response:
            assert response.status == 200, await response.text()
            answer: dict[str, Any] = await response.json()
            return answer


@contextmanager
def served(model: Path, folder: Path, environment: Path, *options: str) -> Iterator[VllmServer]:
    """A server of its own for the length of a block; not ready yet when that begins."""
    server = VllmServer(environment=environment, model=model, folder=folder, port=free_port(), options=options)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def chat(*, prompt: str = "one lease and one clock", max_tokens: int = 64, stream: bool = True) -> dict[str, Any]:
    """A request that generates exactly ``max_tokens`` tokens, the same ones on every replica."""
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "seed": 7,
        "stream": stream,
    }


def long_prompt(tokens: int) -> str:
    """A prompt of at least so many tokens, for a prefill that lasts."""
    return "model " * tokens


def _name_of(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
