"""A real headless Chromium over its DevTools protocol: no driver, no download, one websocket."""

import asyncio
import base64
import itertools
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

BINARY = "chromium"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
LIMIT_S = 30.0


class Browser:
    """One page. Every event that the browser told is in ``events``, as (method, params)."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._changed = asyncio.Condition()
        self.events: list[tuple[str, dict[str, Any]]] = []

    async def listen(self) -> None:
        async for message in self._socket:
            document = json.loads(message.data)
            if "id" in document:
                self._answers.pop(document["id"]).set_result(document)
                continue
            async with self._changed:
                self.events.append((document["method"], document["params"]))
                self._changed.notify_all()

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        await self._socket.send_json({"id": number, "method": method, "params": params})
        document = await asyncio.wait_for(answer, LIMIT_S)
        assert "error" not in document, document
        return document["result"]

    def seen(self, method: str) -> list[dict[str, Any]]:
        """Every event of a kind so far."""
        return [params for name, params in self.events if name == method]

    async def seen_more(self, method: str, before: int) -> None:
        """Wait until there are more events of a kind than ``before``."""
        async with asyncio.timeout(LIMIT_S), self._changed:
            await self._changed.wait_for(lambda: len(self.seen(method)) > before)

    async def open(self, url: str) -> None:
        """Go there and wait until it is loaded."""
        before = len(self.seen("Page.loadEventFired"))
        await self.call("Page.navigate", url=url)
        await self.seen_more("Page.loadEventFired", before)

    async def click(self, selector: str) -> None:
        """Click the first element with a real mouse event, and wait for the page behind it."""
        place = await self.js(
            f"(() => {{ const box = document.querySelector({json.dumps(selector)}); box.scrollIntoView({{block: 'center'}});"
            " const at = box.getBoundingClientRect(); return {x: at.x + at.width / 2, y: at.y + at.height / 2}; })()"
        )
        before = len(self.seen("Page.loadEventFired"))
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)
        await self.seen_more("Page.loadEventFired", before)

    async def js(self, expression: str) -> Any:
        """The value of an expression on the page. DevTools evaluates it whatever the page's policy says."""
        result = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def text(self) -> str:
        """What a reader sees, tooltips not included."""
        return str(await self.js("document.body.innerText"))

    async def look(self, *, width: int, height: int = 900, scheme: str = "light") -> None:
        """Take the size of a screen and a colour scheme."""
        await self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser with one empty page and an empty profile; it ends with the block."""
    binary = shutil.which(BINARY)
    assert binary is not None, "Debian's chromium is not installed; make test-browser installs it"
    with tempfile.TemporaryDirectory(prefix="deltafence-browser-", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            binary,
            *FLAGS,
            f"--user-data-dir={profile}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stderr is not None
            port = await asyncio.wait_for(_debugging_port(process.stderr), LIMIT_S)
            async with aiohttp.ClientSession() as session:
                page = await asyncio.wait_for(_first_page(session, port), LIMIT_S)
                async with session.ws_connect(page, max_msg_size=0) as socket:
                    browser = Browser(socket)
                    listening = asyncio.create_task(browser.listen())
                    for domain in ("Page", "Runtime", "Network", "Log"):
                        await browser.call(f"{domain}.enable")
                    yield browser
                    listening.cancel()
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _first_page(session: aiohttp.ClientSession, port: str) -> str:
    """Where its first page is debugged; the browser listens a moment before it has one."""
    while True:
        async with session.get(f"http://127.0.0.1:{port}/json") as answer:
            for target in await answer.json():
                if target["type"] == "page":
                    return str(target["webSocketDebuggerUrl"])
        await asyncio.sleep(0.02)


async def _debugging_port(stderr: asyncio.StreamReader) -> str:
    async for line in stderr:
        if b"DevTools listening on ws://" in line:
            return line.decode().split("ws://127.0.0.1:")[1].partition("/")[0]
    raise AssertionError("chromium ended")
