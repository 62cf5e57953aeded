"""An HTTP server that speaks the Kubernetes API's wire format, as far as deltafence speaks it, with faults on demand.

Separate from the tests that use it, so that a real API server can take its place: they only see a URL and ``put``/``delete``.
What it says follows kubernetes.io/docs/reference/using-api/api-concepts: lists in pages with a ``resourceVersion``, watches as
lines of JSON with bookmarks, errors as Status objects, 410 for a version that is forgotten.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Object = dict[str, Any]


@dataclass
class Change:
    """One entry of the server's history."""

    version: int
    path: str
    kind: str
    found: Object


@dataclass
class ApiServer:
    """Objects by collection path, their history, and the faults that are switched on."""

    objects: dict[str, dict[str, Object]] = field(default_factory=dict)
    """Collection path (without a namespace) to ``namespace/name`` to object."""
    history: list[Change] = field(default_factory=list)
    version: int = 100
    oldest: int = 0
    """Watches from before this version get 410."""
    page: int = 500
    status: int = 200
    """Anything else: every request is refused with it."""
    message: str = "no"
    raw_watch: list[bytes] | None = None
    """Lines that the next watch says in place of its own."""
    failing_watch: bytes | None = None
    """What every watch says before it ends."""
    raw_answer: str | None = None
    """The text of every answer, in place of its own."""
    raw_refusal: str | None = None
    """The text of a refusal, in place of a Status object."""
    requests: list[str] = field(default_factory=list)
    forbidden_posts: bool = False
    created: list[Object] = field(default_factory=list)
    token: str | None = None
    url: str = ""
    watching: int = 0
    """Open watches."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    cut: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, path: str, found: Object) -> None:
        """Create or replace an object."""
        self.version += 1
        metadata = found["metadata"]
        key = f"{metadata.get('namespace', '')}/{metadata['name']}"
        stored = {**found, "metadata": {"uid": f"uid-{key}", **metadata, "resourceVersion": str(self.version)}}
        known = self.objects.setdefault(path, {})
        self._record(path, "MODIFIED" if key in known else "ADDED", stored)
        known[key] = stored

    def delete(self, path: str, namespace: str, name: str) -> None:
        self.version += 1
        found = self.objects[path].pop(f"{namespace}/{name}")
        self._record(path, "DELETED", {**found, "metadata": {**found["metadata"], "resourceVersion": str(self.version)}})

    def forget(self) -> None:
        """Compact: no watch may begin before now."""
        self.oldest = self.version

    def cut_watches(self) -> None:
        """Break every open watch without its proper end."""
        self.cut.set()
        self.cut = asyncio.Event()

    def _record(self, path: str, kind: str, found: Object) -> None:
        self.history.append(Change(version=self.version, path=path, kind=kind, found=found))
        self.changed.set()
        self.changed = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path_qs}")
        if self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            return refusal(401, "Unauthorized")
        if self.status != 200 and self.raw_refusal is not None:
            return web.Response(text=self.raw_refusal, status=self.status)
        if self.status != 200:
            return refusal(self.status, self.message)
        if self.raw_answer is not None:
            return web.Response(text=self.raw_answer)
        if request.method == "POST":
            return await self.create(request)
        path, namespace = without_namespace(request.path)
        if path not in self.objects:
            return refusal(404, "the server could not find the requested resource")
        if request.query.get("watch") == "1":
            return await self.watch(request, path, namespace)
        return self.list(request, path, namespace)

    async def create(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.forbidden_posts:
            return refusal(403, 'cannot create resource "events"')
        if any(known["metadata"]["name"] == body["metadata"]["name"] for known in self.created):
            return refusal(409, "already exists")
        self.created.append(body)
        return web.json_response(body, status=201)

    def list(self, request: web.Request, path: str, namespace: str) -> web.Response:
        found = [value for value in self.objects[path].values() if selected(value, namespace, request.query)]
        start = int(request.query.get("continue", "0"))
        stop = start + min(self.page, int(request.query["limit"]))
        metadata: Object = {"resourceVersion": str(self.version)}
        if stop < len(found):
            metadata["continue"] = str(stop)
        items = [{key: value for key, value in item.items() if key != "kind"} for item in found[start:stop]]
        return web.json_response({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items})

    async def watch(self, request: web.Request, path: str, namespace: str) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        if since < self.oldest:
            return refusal(410, "too old resource version")
        response = web.StreamResponse(headers={"content-type": "application/json;stream=watch"})
        await response.prepare(request)
        if self.raw_watch is not None:
            lines, self.raw_watch = self.raw_watch, None
            for line in lines:
                await response.write(line)
            return response
        if self.failing_watch is not None:
            await response.write(self.failing_watch)
            return response
        bookmark = {"type": "BOOKMARK", "object": {"kind": "X", "metadata": {"resourceVersion": str(self.version)}}}
        self.watching += 1
        try:
            while True:
                changed, cut = self.changed, self.cut
                for change in self.history:
                    if change.version > since and change.path == path and selected(change.found, namespace, request.query):
                        await response.write(json.dumps({"type": change.kind, "object": change.found}).encode() + b"\n")
                since = self.version
                await response.write(json.dumps(bookmark).encode() + b"\n")
                waits = [asyncio.ensure_future(event.wait()) for event in (changed, cut)]
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for wait in waits:
                        wait.cancel()
                if cut.is_set():
                    assert request.transport is not None
                    request.transport.abort()
                    return response
        finally:
            self.watching -= 1


def refusal(status: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "status": "Failure", "code": status, "message": message}, status=status)


def without_namespace(path: str) -> tuple[str, str]:
    parts = path.split("/")
    if "namespaces" in parts:
        place = parts.index("namespaces")
        return "/".join([*parts[:place], *parts[place + 2 :]]), parts[place + 1]
    return path, ""


def selected(found: Object, namespace: str, query: Mapping[str, str]) -> bool:
    metadata = found["metadata"]
    if namespace and metadata.get("namespace") != namespace:
        return False
    label, _, value = query.get("labelSelector", "").partition("=")
    labels = metadata.get("labels", {})
    return not label or (labels.get(label) == value if value else label in labels)


@asynccontextmanager
async def api_server() -> AsyncIterator[ApiServer]:
    """A running server on a free port of the loopback interface."""
    server = ApiServer()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    server.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        server.cut_watches()
        await runner.cleanup()
