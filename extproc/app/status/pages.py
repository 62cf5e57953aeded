"""The routes of the pages and of their JSON. All of them are GETs that change nothing."""

from collections.abc import Sequence
from typing import Any, Final

from aiohttp import web

from extproc.app.status.rendering import HEADERS, render, style_sheet
from extproc.app.status.siblings import Siblings
from extproc.app.status.story import number_of, reason_words, sentence, title, tokens_words
from extproc.app.status.timeline import draw, length
from extproc.app.status.view import Sources, facts_line, status_document
from extproc.decision.effects import Outcome
from extproc.journal.interface import JournalQuery, JournalUnavailable
from extproc.journal.records import OPEN, JournalEvent, RequestFacts, fold_all
from extproc.routes.document import leaf_values
from extproc.routes.resolution import BUILT_IN
from extproc.telemetry.witness import trace_id_of

API: Final = "/deltafence/v1"
REFRESH_S: Final = 5
OUTCOMES: Final = (OPEN, *(str(outcome) for outcome in Outcome))
LISTED_DEFAULT: Final = 100
LISTED_MAX: Final = 1_000


class StatusPages:
    """Pages over one processor's sources, and what its siblings tell of theirs."""

    def __init__(self, sources: Sources, siblings: Siblings | None = None) -> None:
        self._sources = sources
        self._siblings = siblings or Siblings()

    def routes(self) -> list[web.RouteDef]:
        """What the admin server serves of this."""
        return [
            web.get("/", self._status_page),
            web.get("/routes", self._routes_page),
            web.get("/requests", self._find),
            web.get("/requests/{request_id}", self._request_page),
            web.get("/status.css", self._style),
            web.get(f"{API}/status", self._status),
            web.get(f"{API}/requests", self._requests),
            web.get(f"{API}/replicas", self._replicas),
        ]

    # --- JSON ---

    async def _gateway(self) -> dict[str, Any]:
        return await self._siblings.gateway_document(status_document(self._sources))

    async def _status(self, request: web.Request) -> web.Response:
        """Query: ``processes=own`` leaves the siblings out."""
        alone = request.query.get("processes") == "own"
        return web.json_response(status_document(self._sources) if alone else await self._gateway())

    async def _replicas(self, request: web.Request) -> web.Response:
        return web.json_response({"replicas": (await self._gateway())["replicas"]})

    async def _requests(self, request: web.Request) -> web.Response:
        """Query: ``outcome``, ``since_s`` (admitted in the last so many seconds), ``limit``."""
        now_ms = self._sources.wall_ms()
        try:
            query = _query_of(request.query, now_ms)
        except ValueError as error:
            return web.json_response({"error": {"code": "invalid_query", "message": str(error)}}, status=400)
        try:
            found = await self._sources.journal.requests(query)
        except JournalUnavailable as error:
            return web.json_response({"error": {"code": "journal_unavailable", "message": str(error)}}, status=503)
        return web.json_response({"requests": [facts_line(facts, now_ms) for facts in found]})

    # --- pages ---

    async def _status_page(self, request: web.Request) -> web.Response:
        refresh = request.query.get("refresh") != "off"
        return _page("status.html", status=await self._gateway(), refresh_s=REFRESH_S if refresh else None)

    async def _routes_page(self, request: web.Request) -> web.Response:
        report = self._sources.routes()
        routes = [_route_table("routes that say nothing else", report["default"])]
        routes += [_route_table(entry["name"], entry) for entry in report["routes"]]
        return _page(
            "routes.html",
            routes=routes,
            refused=(await self._gateway())["routes"]["refused"],
            watches=report["watches"],
            built_in=BUILT_IN,
        )

    async def _find(self, request: web.Request) -> web.Response:
        request_id = request.query.get("id", "").strip()
        if not request_id or not request_id.replace("_", "").isalnum():
            return _page("not_found.html", request_id=request_id, trouble=None, http_status=404)
        raise web.HTTPFound(f"/requests/{request_id}")

    async def _request_page(self, request: web.Request) -> web.Response:
        request_id, trouble = request.match_info["request_id"], None
        try:
            events: Sequence[JournalEvent] = await self._sources.journal.events(request_id)
        except JournalUnavailable as error:
            events, trouble = (), str(error)
        remembered = self._sources.recent.story(request_id)
        if not events and remembered is not None:
            events = remembered.events
        facts = fold_all(events)
        if facts is None:
            return _page("not_found.html", request_id=request_id, trouble=trouble, http_status=404)
        return _page("request.html", **_story(facts, events, self._sources.wall_ms()))

    async def _style(self, request: web.Request) -> web.Response:
        return web.Response(text=style_sheet(), content_type="text/css", headers={"x-content-type-options": "nosniff"})


def _page(template: str, *, http_status: int = 200, **values: Any) -> web.Response:  # noqa: ANN401  (whatever it shows)
    return web.Response(text=render(template, **values), content_type="text/html", status=http_status, headers=HEADERS)


def _story(facts: RequestFacts, events: Sequence[JournalEvent], now_ms: int) -> dict[str, Any]:
    """Everything on a request's page."""
    return {
        "facts": facts,
        "title": title(facts),
        "reason": reason_words(facts) if facts.outcome else None,
        "tokens": tokens_words(facts),
        "trace_id": trace_id_of(events[0]),
        "took": length((facts.ended_at_ms or now_ms) - facts.admitted_at_ms),
        "timeline": draw(facts, events, now_ms),
        "lines": [
            {
                "after": length(event.at_ms - facts.admitted_at_ms),
                "kind": str(event.kind),
                "attempt": number_of(event, facts),
                "what": sentence(event, facts),
                "detail": {name: value for name, value in event.detail.items() if value is not None},
            }
            for event in events
        ],
        "refresh_s": None if facts.outcome else REFRESH_S,
    }


def _route_table(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "object": entry["object"],
        "errors": entry["errors"],
        "keys": [
            {"path": path, "value": value, "source": entry["sources"][path]} for path, value in leaf_values(entry["policy"])
        ],
    }


def _query_of(query: Any, now_ms: int) -> JournalQuery:  # noqa: ANN401  (aiohttp's MultiMapping)
    """Raises ValueError, naming the parameter."""
    outcome = query.get("outcome")
    if outcome is not None and outcome not in OUTCOMES:
        raise ValueError(f"outcome is one of {', '.join(OUTCOMES)}, not {outcome!r}")
    since_s, limit = _number(query, "since_s", 0), _number(query, "limit", LISTED_DEFAULT)
    return JournalQuery(
        outcome=outcome, since_ms=now_ms - since_s * 1000 if since_s else 0, requests_max=min(max(1, limit), LISTED_MAX)
    )


def _number(query: Any, name: str, default: int) -> int:  # noqa: ANN401
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 12:
        raise ValueError(f"{name} is a whole number, not {text!r}")
    return int(text)
