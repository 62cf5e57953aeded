"""The processor's own HTTP interface, read-only: readiness and the journal's facts. On loopback unless told otherwise."""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from extproc.app.route_report import RouteReport
from extproc.journal.interface import Journal, JournalUnavailable
from extproc.journal.records import JournalEvent, RequestFacts

API: Final = "/deltafence/v1"


def facts_document(facts: RequestFacts, events: tuple[JournalEvent, ...]) -> dict[str, object]:
    """The JSON of ``GET /deltafence/v1/requests/{id}`` (R4, R9)."""
    fields = asdict(facts) | {"traits": dict(facts.traits)}
    fields["partial_output"] = facts.first_delta_sent and facts.outcome != "completed"
    fields["attempts_started"] = len(facts.attempts)
    fields["events"] = [
        {
            "at_ms": event.at_ms,
            "kind": str(event.kind),
            "attempt_id": event.attempt_id,
            "replica": event.replica,
            **({"detail": dict(event.detail)} if event.detail else {}),
        }
        for event in events
    ]
    return fields


class AdminServer:
    """Serves the interface from the processor's event loop."""

    def __init__(
        self,
        *,
        journal: Journal,
        is_ready: Callable[[], bool],
        before_answers: Callable[[], None] = lambda: None,
        routes: RouteReport | None = None,
        pages: Iterable[web.RouteDef] = (),
    ) -> None:
        """``pages`` are served beside what is here; all of them must be GETs that change nothing. ``before_answers`` brings up to
        date what they read: who has seen a stream end finds its end here."""
        self._journal = journal
        self._is_ready = is_ready
        self._routes = routes
        self._before_answers = before_answers
        application = web.Application(middlewares=[self._brought_up_to_date])
        application.router.add_get("/livez", self._live)
        application.router.add_get("/readyz", self._ready)
        application.router.add_get(f"{API}/routes", self._route_policies)
        application.router.add_get(f"{API}/requests/{{request_id}}", self._request)
        application.router.add_routes(pages)
        self._runner = web.AppRunner(application, access_log=None)

    async def start(self, host: str, port: int) -> None:
        """Bind and serve. Raises OSError where the address can't be bound."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port, reuse_address=True).start()

    async def stop(self) -> None:
        """Close the listener and its connections."""
        await self._runner.cleanup()

    @web.middleware
    async def _brought_up_to_date(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._before_answers()
        return await handler(request)

    async def _live(self, request: web.Request) -> web.Response:
        return web.Response(text="live\n")

    async def _ready(self, request: web.Request) -> web.Response:
        ready = self._is_ready()
        return web.Response(text="ready\n" if ready else "draining\n", status=200 if ready else 503)

    async def _route_policies(self, request: web.Request) -> web.Response:
        return web.json_response({} if self._routes is None else self._routes.document())

    async def _request(self, request: web.Request) -> web.Response:
        request_id = request.match_info["request_id"]
        try:
            facts = await self._journal.facts(request_id)
            events = await self._journal.events(request_id)
        except JournalUnavailable as error:
            return web.json_response({"error": {"code": "journal_unavailable", "message": str(error)}}, status=503)
        if facts is None:
            message = f"no request {request_id} is in the journal"
            return web.json_response({"error": {"code": "request_not_found", "message": message}}, status=404)
        return web.json_response(facts_document(facts, events))
