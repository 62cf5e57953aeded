"""The little of ASGI that the guard needs: types, headers, a JSON answer, a bounded body (https://asgi.readthedocs.io, HTTP
2.4).
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class BodyTooLargeError(Exception):
    """The body outgrew its limit."""


class BodyCutError(Exception):
    """The peer left before its body was whole."""


def path_of(scope: Scope) -> str:
    """The path below the server's ``root_path``, which ``scope["path"]`` contains."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def header_values(scope: Scope, name: str) -> list[bytes]:
    """Every value of a header; ``name`` in lower case, as ASGI gives them."""
    wanted = name.encode()
    return [value for key, value in scope["headers"] if key == wanted]


async def read_body(receive: Receive, *, limit: int) -> bytes:
    """The whole body; raises BodyTooLargeError or BodyCutError."""
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BodyCutError
        body += message.get("body", b"")
        if len(body) > limit:
            raise BodyTooLargeError
        more = message.get("more_body", False)
    return bytes(body)


async def send_json(send: Send, status: int, body: Mapping[str, object], headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """One whole JSON answer."""
    payload = json.dumps(body).encode()
    fields = [(b"content-type", b"application/json"), (b"content-length", str(len(payload)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": payload})
