"""What we ask of an API server: list, watch, create. Every way in which that fails is an ApiError.

The requests, the credentials and the watch's wire format are kubernetes_asyncio's; ours is only which collection is meant, and
what a failure means to whoever keeps a picture of it (reflection.py).
"""

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, Self

import aiohttp
from kubernetes_asyncio import client as library
from kubernetes_asyncio.client.exceptions import ApiException
from kubernetes_asyncio.watch import Watch

from extproc.kubernetes.access import ApiAccess
from extproc.kubernetes.resources import Collection, Name, Object

WATCH_S: Final = 300
"""How long the server keeps one watch open; it then ends properly and is opened again from where it was."""
SILENCE_S: Final = WATCH_S + 30
"""A watch that is silent for longer is broken without a word: the network lost it."""
CALL_S: Final = 30
CALL_TIMEOUT: Final = aiohttp.ClientTimeout(total=CALL_S)
PAGE: Final = 500
"""Objects of one page of a list: what kubectl asks for."""


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
        self._api: Final = library.ApiClient(access.configuration())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._api.close()

    async def list(self, collection: Collection) -> tuple[list[Object], str]:
        """Every object, and the version to watch from. Raises ApiError."""
        objects: list[Object] = []
        parameters = {"limit": str(PAGE), **_selector(collection)}
        while True:
            page = await self._call("GET", collection.path, parameters)
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

        async def open_watch(**options: object) -> aiohttp.ClientResponse:
            parameters = {
                "watch": "1",
                "resourceVersion": str(options["resource_version"]),
                "allowWatchBookmarks": "true",
                "timeoutSeconds": str(options["timeout_seconds"]),
                **_selector(collection),
            }
            timeout = aiohttp.ClientTimeout(connect=CALL_S, sock_read=SILENCE_S)
            answer: aiohttp.ClientResponse = await self._call("GET", collection.path, parameters, timeout=timeout, whole=False)
            return answer

        watching = Watch()
        try:
            async for event in watching.stream(open_watch, resource_version=version, timeout_seconds=WATCH_S):
                if isinstance(event, dict):
                    yield _event_of(event, collection)
                elif event.endswith("\n") and event.strip():
                    raise ApiError(f"{collection}: a watch event that is no JSON")
        except (ApiError, GeneratorExit):
            raise
        except ApiException as refusal:
            raise _error_of(refusal, str(collection)) from refusal
        except Exception as error:
            # The library tells malformed events by a bare Exception, too long ones by a ValueError.
            raise ApiError(f"{collection}: {type(error).__name__}: {error}") from error
        finally:
            await watching.close()

    async def create(self, path: str, body: Object) -> None:
        """Create one object. Raises ApiError."""
        await self._call("POST", path, {}, body=body)

    async def _call(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str],
        *,
        body: Object | None = None,
        timeout: aiohttp.ClientTimeout = CALL_TIMEOUT,
        whole: bool = True,
    ) -> Any:  # noqa: ANN401  (JSON, or the open answer of a watch)
        try:
            return await self._api.call_api(
                path,
                method,
                query_params=list(parameters.items()),
                header_params={"Accept": "application/json", "User-Agent": "deltafence"},
                body=body,
                response_types_map=dict.fromkeys((200, 201), "object"),
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
                _preload_content=whole,
                _request_timeout=timeout,
            )
        except ApiException as refusal:
            raise _error_of(refusal, path) from refusal
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(f"{path}: {type(error).__name__}: {error}") from error


def _selector(collection: Collection) -> dict[str, str]:
    return {"labelSelector": collection.label_selector} if collection.label_selector else {}


def _error_of(refusal: ApiException, where: str) -> ApiError:
    return _ERRORS.get(refusal.status, ApiError)(f"{where}: {refusal.status} {_message_of(refusal)}")


def _message_of(refusal: ApiException) -> str:
    """The ``message`` of a Status object, else the beginning of whatever came."""
    text = refusal.body or refusal.reason or ""
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return str(text)[:200]


def _event_of(event: dict[str, Any], collection: Collection) -> tuple[str, Object]:
    try:
        kind, found = str(event["type"]), event["raw_object"]
        found["metadata"]["resourceVersion"]
        return kind, found if kind == "BOOKMARK" else _named({"kind": collection.kind, **found})
    except (KeyError, TypeError, AttributeError) as error:
        raise ApiError(f"{collection}: a watch event that makes no sense ({error!r})") from error


def _named(found: Object) -> Object:
    """Raises KeyError or TypeError where an object has no name."""
    Name.of(found)
    return found
