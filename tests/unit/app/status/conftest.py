"""An admin server over a journal and telemetry that a test fills."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import unused_port

from extproc.app.admin import AdminServer
from extproc.app.route_report import RouteReport
from extproc.app.status.pages import StatusPages
from extproc.app.status.replicas import replica_rows
from extproc.app.status.scrape import Scrape
from extproc.app.status.siblings import Siblings
from extproc.app.status.view import Sources
from extproc.journal.memory import MemoryJournal
from extproc.journal.records import JournalEvent
from extproc.replicas.roster import Replica, Roster
from extproc.routes.document import read_layer
from extproc.routes.resolution import PolicyResolver
from extproc.telemetry.assembly import Telemetry
from tests.unit.telemetry.events import BEGIN_MS

REPLICAS = (
    Replica(destination="10.0.0.1:8000", url="http://10.0.0.1:8000", identity="rev-a"),
    Replica(destination="10.0.0.2:8000", url="http://10.0.0.2:8000", identity="rev-a"),
)


@dataclass
class Admin:
    """One processor's admin side."""

    journal: MemoryJournal = field(default_factory=MemoryJournal)
    roster: Roster = field(default_factory=lambda: Roster(REPLICAS))
    reports: dict[str, Any] = field(default_factory=dict)
    resolver: PolicyResolver = field(
        default_factory=lambda: PolicyResolver(default=read_layer("tools: ledger", source="file default.yaml"))
    )
    telemetry: Telemetry = field(default_factory=lambda: Telemetry(instance_id="p1", environment={}, later=lambda tell: None))
    """Told nothing until somebody asks: a page that is not brought up to date shows nothing."""
    draining: bool = False
    now_ms: int = BEGIN_MS + 10_000
    url: str = ""
    paths: frozenset[str] = frozenset()
    """What its server answers at."""

    def tell(self, events: Iterable[JournalEvent]) -> None:
        for event in events:
            self.journal.append(event)
            self.telemetry.observer.saw(event)


@asynccontextmanager
async def serving(admin: Admin, siblings: Siblings | None = None) -> AsyncIterator[Admin]:
    """Its server on a free port."""
    admin.telemetry.watch_journal(admin.journal)
    report = RouteReport(admin.resolver, None)
    sources = Sources(
        recent=admin.telemetry.recent,
        journal=admin.journal,
        replicas=lambda: replica_rows(admin.roster, lambda: admin.reports),
        routes=report.document,
        is_draining=lambda: admin.draining,
        wall_ms=lambda: admin.now_ms,
        started_at_ms=BEGIN_MS,
    )
    server = AdminServer(
        journal=admin.journal,
        is_ready=lambda: not admin.draining,
        before_answers=admin.telemetry.observer.tell,
        routes=report,
        pages=[*StatusPages(sources, siblings).routes(), *Scrape(admin.telemetry.registry).routes()],
    )
    port = unused_port()
    await server.start("127.0.0.1", port)
    admin.url = f"http://127.0.0.1:{port}"
    admin.paths = frozenset(resource.canonical for resource in server._runner.app.router.resources())
    yield admin
    await server.stop()
    await admin.telemetry.close()


@pytest.fixture
async def admin() -> AsyncIterator[Admin]:
    async with serving(Admin()) as admin:
        yield admin


@pytest.fixture
async def http(admin: Admin) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(admin.url) as session:
        yield session
