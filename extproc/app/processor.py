"""One processor process: assembled from settings, run until a signal, drained."""

import asyncio
import gc
import logging
import signal
import ssl
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
from ulid import ULID

from extproc.app.addresses import Address
from extproc.app.admin import AdminServer
from extproc.app.health_watch import HealthWatch
from extproc.app.route_report import RouteReport
from extproc.app.status.pages import StatusPages
from extproc.app.status.replicas import replica_rows
from extproc.app.status.scrape import Scrape
from extproc.app.status.siblings import Siblings
from extproc.app.status.view import Sources
from extproc.app.stores import KeySettings, Stores, StoreSettings
from extproc.app.surroundings import Surroundings
from extproc.app.wires import EgressProtocol, TransportKind, make_attempt_client, make_transport
from extproc.decision.policy import Policy
from extproc.decision.verdicts import HealthSettings
from extproc.processor.body_room import BODIES_BYTES_MAX
from extproc.processor.decision_log import NO_DECISION_LOG, DecisionFile
from extproc.processor.gathering import Gathering
from extproc.processor.keyed import Keying
from extproc.processor.pools import Pools
from extproc.processor.ports import World
from extproc.processor.service import RouteQuestion, Service, ServiceLimits
from extproc.processor.tool_service import ToolService, ToolWorld
from extproc.replicas.fencing import GuardedFence
from extproc.replicas.guard_client import GuardClient
from extproc.replicas.health_reader import monotonic_ms
from extproc.replicas.identities import Identities
from extproc.replicas.roster import Replica, Roster
from extproc.replicas.shown_facts import ShownFacts
from extproc.routes.resolution import PolicyResolver
from extproc.telemetry.assembly import Telemetry
from extproc.telemetry.witness import TOLD_AFTER_S

LOGGER: Final = logging.getLogger("deltafence.processor")

ENDING_GRACE_S: Final = 2.0
"""After the drain limit: the time for terminal events to be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorSettings:
    """What ``deltafence processor`` was asked for. Sizes in bytes."""

    socket: str
    egress: str
    replicas: tuple[Replica, ...]
    """Known at the start; what is found later takes their place."""
    tls: ssl.SSLContext | None = None
    """By which https replicas are checked; None: the machine's authorities."""
    token: str = ""
    """The secret shared with the replicas' guards."""
    surroundings: Surroundings
    resolver: PolicyResolver
    admin: Address | None = None
    siblings: tuple[Address, ...] = ()
    """Admin addresses of the other processes of this gateway."""
    transport: TransportKind = TransportKind.GRPC
    egress_protocol: EgressProtocol = EgressProtocol.H1
    stores: StoreSettings = field(default_factory=StoreSettings)
    keys: KeySettings = field(default_factory=KeySettings)
    health: HealthSettings = field(default_factory=HealthSettings)
    request_bytes_max: int = 64 << 20
    bodies_bytes_max: int = BODIES_BYTES_MAX
    held_bytes_max: int = 64 << 20
    streams_max: int = 10_000
    drain_limit_s: float = 5.0
    decision_log: Path | None = None
    """A file for every decision (extproc/processor/decision_log.py)."""


async def run_processor(settings: ProcessorSettings) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises OSError where an address can't be bound.

    Assembled inside the loop: grpc.aio binds its server to the loop that is running when it is made.
    """
    processor_id = f"proc_{ULID()}"
    telemetry = Telemetry(instance_id=processor_id, later=partial(asyncio.get_running_loop().call_later, TOLD_AFTER_S))
    stores = await Stores.open(settings.stores, processor_id, telemetry.unrecorded)
    try:
        await Processor(settings, stores, telemetry, processor_id).run()
    finally:
        await stores.close()
        await telemetry.close()


class Processor:
    """The assembled process."""

    def __init__(self, settings: ProcessorSettings, stores: Stores, telemetry: Telemetry, processor_id: str) -> None:
        self._settings = settings
        self._telemetry = telemetry
        self._draining = False
        self._journal = stores.journal
        self._stopped = asyncio.Event()
        self._roster = Roster(settings.replicas)
        self._telemetry.watch_journal(stores.keyed_journal)
        self._control_calls = aiohttp.ClientSession(
            # Idle connections end before uvicorn ends them, after 5 s (CASES EN-09).
            connector=aiohttp.TCPConnector(keepalive_timeout=3.0, limit=0, ssl=settings.tls or True),
            trust_env=False,
        )
        guards = GuardClient(
            session=self._control_calls, token=settings.token, clock_ms=monotonic_ms, beaten=self._telemetry.beaten
        )
        self._identities = Identities(self._roster, ShownFacts(guards=guards).read)
        self._fence = GuardedFence(client=guards, processor_id=processor_id, process_heard=self._identities.process_heard)
        world = World(
            roster=self._roster,
            attempts=make_attempt_client(settings.egress_protocol, settings.egress),
            fence=self._fence,
            journal=self._journal,
            pools=Pools(),
            tool_call_recorded=stores.tool_call_recorded,
            now_ms=monotonic_ms,
            wall_ms=wall_ms,
            new_id=lambda: str(ULID()),
            held_bytes_max=settings.held_bytes_max,
            is_draining=lambda: self._draining,
            keying=Keying(
                keys=stores.keys,
                journal=stores.keyed_journal,
                secret=settings.keys.secret,
                ttl_ms=settings.keys.ttl_ms,
                caller_header=settings.keys.caller_header,
            ),
            gather=Gathering(asyncio.get_running_loop()).add,
            texts=stores.texts,
            observer=self._telemetry.observer,
            decisions=DecisionFile(settings.decision_log) if settings.decision_log else NO_DECISION_LOG,
        )
        self._tools = (
            None
            if stores.ledger is None
            else ToolService(ToolWorld(attempts=world.attempts, ledger=stores.ledger, key_secret=settings.keys.secret))
        )
        limits = ServiceLimits(
            request_bytes_max=settings.request_bytes_max,
            streams_max=settings.streams_max,
            bodies_bytes_max=settings.bodies_bytes_max,
        )
        self._service = Service(world, limits, self._policy_of, self._tools)
        self._health = HealthWatch(
            settings.health,
            self._roster,
            lambda: self._service.sessions,
            self._telemetry.verdicts,
            self._identities.restarted,
            settings.tls,
        )
        if settings.surroundings.routes is not None:
            settings.surroundings.routes.judged = self._telemetry.policies.objects_judged
        self._transport = make_transport(settings.transport, self._service, settings.socket)
        self._admin = AdminServer(
            journal=self._journal,
            is_ready=lambda: not self._draining,
            before_answers=self._telemetry.observer.tell,
            routes=(report := RouteReport(settings.resolver, settings.surroundings.routes)),
            pages=[
                *StatusPages(self._status_sources(report), Siblings(settings.siblings)).routes(),
                *Scrape(self._telemetry.registry).routes(),
            ],
        )

    async def run(self) -> None:
        """See run_processor."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopped.set)
        async with (
            self._settings.surroundings.watched(self._roster, self._fence.pod_deleted),
            self._identities.learning(),
            self._health.watching(),
        ):
            self._roster.subscribe(self._fence)
            _keep_what_is_here()
            await self._transport.start()
            if self._settings.admin is not None:
                await self._admin.start(self._settings.admin.host, self._settings.admin.port)
            LOGGER.info("serving", extra={"socket": self._settings.socket, "replicas": len(self._roster.replicas)})
            reporting = asyncio.create_task(self._report_guards(), name="report guards")
            await self._stopped.wait()
            reporting.cancel()
            await self._drain()

    def _status_sources(self, report: RouteReport) -> Sources:
        return Sources(
            recent=self._telemetry.recent,
            journal=self._journal,
            replicas=lambda: replica_rows(self._roster, self._health.monitor.reports),
            routes=report.document,
            is_draining=lambda: self._draining,
            wall_ms=wall_ms,
            started_at_ms=wall_ms(),
        )

    async def _report_guards(self) -> None:
        """Say which replicas have a guard: without one, silence can't be fenced and ends in a controlled error."""
        await asyncio.gather(*map(self._report_guard, self._roster.replicas))

    async def _report_guard(self, replica: Replica) -> None:
        LOGGER.info("guard at %s: %s", replica.url, await self._fence.find_guard(replica))

    async def _drain(self) -> None:
        """Start nothing new, let running streams end until the limit, end what is left in words."""
        self._draining = True
        stopping = asyncio.create_task(self._transport.stop(self._settings.drain_limit_s + ENDING_GRACE_S))
        done, _ = await asyncio.wait({stopping}, timeout=self._settings.drain_limit_s)
        if not done:
            self._service.end_sessions()
            await stopping
        if self._tools is not None:
            await self._tools.stop(ENDING_GRACE_S)
        await self._admin.stop()
        await self._fence.close()
        await self._control_calls.close()

    def _policy_of(self, question: RouteQuestion) -> Policy:
        effective = self._settings.resolver.resolve(
            initial_metadata=question.initial_metadata or "",
            route_metadata=question.route_metadata or "",
            route_name=question.route_name or "",
        )
        self._telemetry.policies.used(question.route_name or "", effective)
        return effective.policy


def _keep_what_is_here() -> None:
    """Modules and all that serves every request stay until the end. A full garbage collection stops every stream for as long as
    it looks at what there is, and for these it took 100 ms."""
    gc.collect()
    gc.freeze()


def wall_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
