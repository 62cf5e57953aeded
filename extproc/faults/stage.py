"""A gateway between replicas that break on command and a tool that keeps a log: what a round of faults happens on."""

import asyncio
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from extproc.faults.apis import PATHS, request_body
from extproc.faults.evidence import Bounds
from extproc.faults.gateway import POLL_S, Commands, Gateway, GatewayError, GatewaySettings, running_gateway
from extproc.faults.points import TOKENS, Setting
from extproc.faults.tool import Tool, running_tool
from extproc.links.listening import free_port
from extproc.sim.link import Link, start_link
from extproc.sim.process import ReplicaProcess, start_replica
from extproc.sim.settings import Settings
from extproc.sse.dialects import Dialect

REPLICAS: Final = ("replica-a", "replica-b", "replica-c", "replica-d")
"""Two may fail together, and two are left for the repeats."""
MODEL: Final = "sim-model"
PLACEABLE: Final = frozenset({"idle", "busy", "suspect"})
"""Verdicts of replicas that get attempts."""
READY_LIMIT_S: Final = 60.0
COMPLAINTS: Final = ("Traceback", "Error:", "the session broke", "InvariantBroken")
ATTEMPTS_MAX: Final = 2
_OPEN_HANDED: Final[Mapping[str, object]] = {
    "on_upstream_failure": {"before_first_delta": {"max_attempts": ATTEMPTS_MAX}},
    "retry_budget": {"percent": 100, "min_per_second": 100, "burst": 1000},
    "replay_cost": {"max_prompt_tokens": 10_000_000, "max_prefill_ms": 3_600_000},
    "deadlines": {"finish_linger_ms": 300},
    "tools": "ledger",
}
"""The suite fails far more requests than any route would repeat, and it is not the budget that is under test here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings:
    """How one stage differs from another."""

    lease_ttl_ms: int
    cancel_timeout_ms: int
    hung_after_s: float
    health_interval_s: float
    has_links: bool
    patience_s: float
    """Beyond what the protocol promises: a busy machine, and the suite's own polling."""

    @property
    def policy(self) -> dict[str, object]:
        return {**_OPEN_HANDED, "lease": {"ttl_ms": self.lease_ttl_ms, "cancel_timeout_ms": self.cancel_timeout_ms}}

    @property
    def bounds(self) -> Bounds:
        """Replicas that can be cut off stop at their lease's end; the others at once, long before it."""
        promised_s = self.lease_ttl_ms / 1000 if self.has_links else 0.0
        return Bounds(attempts_max=ATTEMPTS_MAX, over_within_s=promised_s + self.patience_s)


STAGES: Final[dict[Setting, StageSettings]] = {
    Setting.PATIENT: StageSettings(
        lease_ttl_ms=20_000, cancel_timeout_ms=2_000, hung_after_s=600, health_interval_s=0.3, has_links=False, patience_s=8
    ),
    Setting.CUTTABLE: StageSettings(
        lease_ttl_ms=5_000, cancel_timeout_ms=2_000, hung_after_s=600, health_interval_s=0.5, has_links=True, patience_s=8
    ),
    Setting.WATCHFUL: StageSettings(
        lease_ttl_ms=20_000, cancel_timeout_ms=2_000, hung_after_s=2, health_interval_s=0.3, has_links=False, patience_s=8
    ),
}


@dataclass(slots=True, kw_only=True)
class Stage:
    """Everything that runs."""

    settings: StageSettings
    replicas: dict[str, ReplicaProcess]
    links: dict[str, Link]
    gateway: Gateway
    tool: Tool
    directory: Path
    _addresses: dict[str, str] = field(default_factory=dict)

    async def mend(self) -> None:
        """Start again what has ended, let go what was held, cut or armed, and wait until every replica gets attempts again."""
        for link in self.links.values():
            link.heal()
        self.tool.is_dying = False
        ended = [replica for replica in self.replicas.values() if replica.returncode is not None]
        for replica in self.replicas.values():
            await (replica.restart() if replica in ended else replica.reset())
        await self.until_placeable()
        if ended:
            await self.until_serving()
            for replica in self.replicas.values():
                await replica.reset()

    async def until_placeable(self) -> None:
        """Raises GatewayError where health does not think so in time."""
        deadline = time.monotonic() + READY_LIMIT_S
        while time.monotonic() < deadline:
            verdicts = await self.gateway.verdicts()
            if len(verdicts) == len(self.replicas) and set(verdicts.values()) <= PLACEABLE:
                return
            await asyncio.sleep(POLL_S)
        raise GatewayError(f"replicas get no attempts: {verdicts}\n{self.gateway.log.read_text()[-3000:]}")

    async def until_serving(self) -> None:
        """Until generations succeed at their first attempt, one for each replica: after a restart Envoy sees its processor a
        little later, a fence its replica's new boot id, and the journal its file."""
        body = request_body(Dialect.CHAT, model=MODEL, stream=False)
        deadline = time.monotonic() + READY_LIMIT_S
        successes = 0
        while time.monotonic() < deadline:
            attempts = await self.gateway.attempts_of_generation(PATHS[Dialect.CHAT], body)
            successes = successes + 1 if attempts == 1 else 0
            if successes == len(self.replicas):
                return
            if not successes:
                await asyncio.sleep(POLL_S)
        raise GatewayError(f"no request succeeds any more:\n{self.gateway.log.read_text()[-3000:]}")

    def complaints(self) -> list[tuple[str, str]]:
        """What the logs of the gateway and of the replicas say that no log ever should: who, and the line."""
        texts = {"gateway": self.gateway.log.read_text(errors="replace")}
        texts |= {name: replica.stderr() for name, replica in self.replicas.items()}
        lines = [(name, line) for name, text in texts.items() for line in text.splitlines()]
        return [(name, line) for name, line in lines if any(mark in line for mark in COMPLAINTS)]

    async def logs(self, replicas: Iterable[str] | None = None) -> dict[str, list[dict[str, Any]]]:
        """What replicas say that they were asked and have published; of all that run unless told which."""
        wanted = self.replicas if replicas is None else replicas
        return {name: await self.replicas[name].log() for name in wanted if self.replicas[name].returncode is None}


@asynccontextmanager
async def running_stage(setting: Setting, commands: Commands) -> AsyncIterator[Stage]:
    """A stage for the length of a block. Raises GatewayError, extproc.sim.process.ReplicaStartError."""
    settings = STAGES[setting]
    token = secrets.token_hex()
    async with AsyncExitStack() as stack:
        # /tmp, since a socket's name must be short.
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="deltafence-faults-", dir="/tmp"))
        directory = Path(name)
        claims = directory / "claims"
        claims.mkdir()
        tool = await stack.enter_async_context(running_tool())
        tools_port = free_port()
        tool_url = f"http://127.0.0.1:{tools_port}/tools/charge/"
        replicas: dict[str, ReplicaProcess] = {}
        links: dict[str, Link] = {}
        for replica_name in REPLICAS:
            replica = await stack.enter_async_context(start_replica(_replica(replica_name, token, claims, tool_url)))
            replicas[replica_name] = replica
            if settings.has_links:
                links[replica_name] = await stack.enter_async_context(start_link(replica.port))
        gateway_settings = GatewaySettings(
            replicas=tuple(links[name].url if settings.has_links else replicas[name].url for name in REPLICAS),
            policy=settings.policy,
            token=token,
            hung_after_s=settings.hung_after_s,
            health_interval_s=settings.health_interval_s,
            tool=f"http://127.0.0.1:{tool.port}",
            tools_port=tools_port,
        )
        gateway = await stack.enter_async_context(running_gateway(commands, gateway_settings, directory))
        stage = Stage(settings=settings, replicas=replicas, links=links, gateway=gateway, tool=tool, directory=directory)
        await stage.until_placeable()
        yield stage


def _replica(name: str, token: str, claims: Path, tool_url: str) -> Settings:
    return Settings(
        name=name,
        model=MODEL,
        tokens=TOKENS,
        token_interval_ms=10,
        prefill_ms=20,
        slots=256,
        guard=True,
        token=token,
        claims=str(claims),
        tool_url=tool_url,
    )
