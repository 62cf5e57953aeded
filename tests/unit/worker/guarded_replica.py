"""What the guard's tests share: an app that does what the test tells it to, and everything a test needs of one guarded server."""

import asyncio
from dataclasses import dataclass, field

import aiohttp

from extproc.contract import headers
from extproc.contract.guard import CANCEL_PATH_FORMAT, HEARTBEAT_PATH
from extproc.worker import LeaseGuard
from extproc.worker.asgi import Message, Receive, Scope, Send

TOKEN = "a-shared-secret"
START_MS = 5_000_000
CHAT = "/v1/chat/completions"


class ScriptedApp:
    """Answers with the chunks that the test puts, ends at None, and tells what became of it."""

    def __init__(self) -> None:
        self.chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.last_words: bytes | None = None
        self.scopes: list[Scope] = []
        self.arrived = asyncio.Event()
        self.ended = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        self.arrived.set()
        try:
            await self._answer(send)
        except asyncio.CancelledError:
            self.cancelled.set()
            await self.may_end.wait()
            if self.last_words is not None:
                await send({"type": "http.response.body", "body": self.last_words, "more_body": True})
            raise
        finally:
            self.ended.set()

    @staticmethod
    async def silent_receive() -> Message:
        """A peer that says nothing."""
        return await asyncio.Future()

    @staticmethod
    async def refuse_to_send(message: Message) -> None:
        raise AssertionError(message)

    def release(self) -> None:
        """Let every request end, so that the server can."""
        self.may_end.set()
        for _ in self.scopes:
            self.chunks.put_nowait(None)

    async def _answer(self, send: Send) -> None:
        chunk = await self.chunks.get()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        while chunk is not None:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            chunk = await self.chunks.get()
        await send({"type": "http.response.body", "body": b""})


@dataclass(slots=True, kw_only=True)
class GuardedReplica:
    """Everything a test needs of one guarded server."""

    url: str
    app: ScriptedApp
    session: aiohttp.ClientSession
    guard: LeaseGuard | None = None
    now_ms: int = START_MS
    boot_id: str = ""
    token: str | None = TOKEN
    requests: list[asyncio.Task[aiohttp.ClientResponse]] = field(default_factory=list)
    responses: list[aiohttp.ClientResponse] = field(default_factory=list)

    def lease(self, attempt_id: str = "att_1", *, ttl_ms: int = 10_000, boot_id: str | None = None) -> dict[str, str]:
        """The headers of an attempt whose lease runs from now."""
        fields = {
            headers.ATTEMPT_ID: attempt_id,
            headers.BOOT_ID: boot_id or self.boot_id,
            headers.VALID_UNTIL_MS: str(self.now_ms + ttl_ms),
        }
        return fields | self.secret()

    def secret(self) -> dict[str, str]:
        return {headers.TOKEN: self.token} if self.token is not None else {}

    async def get(self, path: str, fields: dict[str, str] | None = None) -> aiohttp.ClientResponse:
        return self._kept(await self.session.get(self.url + path, headers=fields))

    async def post(self, path: str, fields: dict[str, str] | None = None) -> aiohttp.ClientResponse:
        return self._kept(await self.session.post(self.url + path, headers=fields, json={}))

    def start(self, fields: dict[str, str] | None = None, *, path: str = CHAT) -> asyncio.Task[aiohttp.ClientResponse]:
        """A generation whose headers are awaited later."""
        request = asyncio.create_task(self.post(path, self.lease() if fields is None else fields))
        self.requests.append(request)
        return request

    async def begin(self, chunk: bytes = b"data: one\n\n", fields: dict[str, str] | None = None) -> aiohttp.ClientResponse:
        """A generation whose first chunk has arrived."""
        request = self.start(fields)
        self.app.chunks.put_nowait(chunk)
        response = await request
        assert await response.content.readany() == chunk
        return response

    async def cancel(self, attempt_id: str = "att_1") -> aiohttp.ClientResponse:
        return await self.post(CANCEL_PATH_FORMAT.format(attempt_id=attempt_id), self.secret())

    async def heartbeat(self, *leases: tuple[str, int]) -> aiohttp.ClientResponse:
        body = {
            "processor_id": "gateway-1",
            "leases": [{"attempt_id": attempt_id, "valid_until_ms": valid_until_ms} for attempt_id, valid_until_ms in leases],
        }
        return self._kept(await self.session.post(self.url + HEARTBEAT_PATH, headers=self.secret(), json=body))

    async def state_of(self, attempt_id: str) -> str:
        """As a heartbeat that renews nothing sees it."""
        answer = await (await self.heartbeat((attempt_id, 0))).json()
        return str(answer["attempts"][0]["state"])

    def _kept(self, response: aiohttp.ClientResponse) -> aiohttp.ClientResponse:
        self.responses.append(response)
        return response

    async def leave(self) -> None:
        """Let every request end and close every connection."""
        self.app.release()
        await asyncio.gather(*self.requests, return_exceptions=True)
        for response in self.responses:
            response.close()
