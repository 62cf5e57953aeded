"""Requests to the API server, one at a time: list, watch, create. Every way in which they fail is an ApiError."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Self

import aiohttp

from extproc.kubernetes.access import ApiAccess
from extproc.kubernetes.resources import Collection, Name, Object

WATCH_S: Final = 300
"""How long the server keeps one watch open; it then ends properly and is opened again from where it was."""
SILENCE_S: Final = WATCH_S + 30
"""A watch that is silent for longer is broken without a word: the network lost it."""
CALL_S: Final = 30
PAGE: Final = 500
"""Objects of one page of a list: what kubectl asks for."""
LINE_BYTES_MAX: Final = 4 << 20
"""Larger than any object that etcd takes (1.5 MiB), so that a server gone mad can't fill memory."""


class ApiError(Exception):
    """The API server can't be asked now: away, overloaded, or its answer makes no sense."""


class ForbiddenError(ApiError):
    """401 or 403: the account may not do this. The message is the server's, which names verb, resource and account."""


class AbsentError(ApiError):
    """404: the collection doesn't exist, so its custom resource definition is not installed."""


class ExpiredError(ApiError):
    """410: the version that a watch wants to begin at is forgotten; list again."""


class ExistsError(ApiError):
    """409: there is an object of that name already."""


_ERRORS: Final[Mapping[int, type[ApiError]]] = {
    401: ForbiddenError,
    403: ForbiddenError,
    404: AbsentError,
    409: ExistsError,
    410: ExpiredError,
}


class ApiClient:
    """A session with one API server."""

    def __init__(self, access: ApiAccess) -> None:
        """Only inside a running event loop."""
        self._access: Final = access
        connector = aiohttp.TCPConnector(ssl=access.tls() or True)
        self._session: Final = aiohttp.ClientSession(access.url, connector=connector)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def list(self, collection: Collection) -> tuple[list[Object], str]:
        """Every object, and the version to watch from. Raises ApiError."""
        objects: list[Object] = []
        parameters = {"limit": str(PAGE), **_selector(collection)}
        while True:
            page = await self._json("GET", collection.path, parameters)
            try:
                objects += [_named({"kind": collection.kind, **item}) for item in page["items"]]
                version, more = str(page["metadata"]["resourceVersion"]), page["metadata"].get("continue")
            except (KeyError, TypeError) as error:
                raise ApiError(f"{collection}: an answer that is no list ({error!r})") from error
            if not more:
                return objects, version
            parameters = {**parameters, "continue": more}

    async def watch(self, collection: Collection, version: str) -> AsyncGenerator[tuple[str, Object], None]:
        """Type and object of each change from ``version`` on, until the server ends the watch. Raises ApiError."""
        parameters = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
            **_selector(collection),
        }
        timeout = aiohttp.ClientTimeout(connect=CALL_S, sock_read=SILENCE_S)
        async with self._request("GET", collection.path, parameters, timeout) as answer:
            async for line in _lines(answer.content):
                yield _event_of(line, collection)

    async def create(self, path: str, body: Object) -> None:
        """Create one object. Raises ApiError."""
        async with self._request("POST", path, {}, aiohttp.ClientTimeout(total=CALL_S), body) as answer:
            await answer.read()

    async def _json(self, method: str, path: str, parameters: Mapping[str, str]) -> Any:  # noqa: ANN401  (JSON)
        async with self._request(method, path, parameters, aiohttp.ClientTimeout(total=CALL_S)) as answer:
            try:
                return await answer.json(content_type=None)
            except ValueError as error:
                raise ApiError(f"{path}: an answer that is no JSON") from error

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
        body: Object | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            headers = self._access.headers()
            async with self._session.request(
                method, path, params=parameters, headers=headers, timeout=timeout, json=body, allow_redirects=False
            ) as answer:
                if answer.status >= 300:
                    raise _ERRORS.get(answer.status, ApiError)(f"{path}: {answer.status} {await _message_of(answer)}")
                yield answer
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(f"{path}: {type(error).__name__}: {error}") from error


def _selector(collection: Collection) -> dict[str, str]:
    return {"labelSelector": collection.label_selector} if collection.label_selector else {}


async def _message_of(answer: aiohttp.ClientResponse) -> str:
    """The ``message`` of a Status object, else the beginning of whatever came."""
    text = (await answer.content.read(4096)).decode(errors="replace")
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200]


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Whole lines; an unfinished one at the end of a broken connection is dropped."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise ApiError(f"a watch event of more than {LINE_BYTES_MAX} bytes")
        for line in lines:
            if line.strip():
                yield line


def _event_of(line: bytes, collection: Collection) -> tuple[str, Object]:
    try:
        event = json.loads(line)
        kind, found = str(event["type"]), event["object"]
        if kind == "ERROR":
            raise _ERRORS.get(found.get("code"), ApiError)(f"{collection}: {found.get('code')} {found.get('message')}")
        found["metadata"]["resourceVersion"]
        return kind, found if kind == "BOOKMARK" else _named({"kind": collection.kind, **found})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ApiError(f"{collection}: a watch event that makes no sense ({error!r})") from error


def _named(found: Object) -> Object:
    """Raises KeyError or TypeError where an object has no name."""
    Name.of(found)
    return found
