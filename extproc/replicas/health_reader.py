"""Looks at replicas over aiohttp: one request, one observation, whatever happens on the way."""

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import aiohttp

from extproc.decision.looks import BODY_BYTES_MAX, Look, Observation, Outcome, read_answer, request_for

PIECE_BYTES: Final = 65_536
SELF_EXPLAINING: Final = (Outcome.REFUSED, Outcome.CONNECT_TIMEOUT, Outcome.READ_TIMEOUT)


def monotonic_ms() -> int:
    """The gateway's clock for health."""
    return time.monotonic_ns() // 1_000_000


class AnswerTooLargeError(Exception):
    """More bytes than any page has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReader:
    """Takes looks. ``api_key`` goes to ``/v1`` paths only, where it is not empty."""

    session: aiohttp.ClientSession
    api_key: str = ""
    clock: Callable[[], int] = monotonic_ms

    async def take(self, url: str, look: Look, *, model: str, timeout_ms: int) -> Observation:
        """Look at the replica at ``url`` (no trailing slash). Raises only CancelledError, and then breaks off at once."""
        began_ms = self.clock()
        try:
            status, body = await self._exchange(url, look, model, timeout_ms)
        except (aiohttp.ClientError, OSError, TimeoutError, AnswerTooLargeError, ValueError) as error:
            return Observation(look=look, outcome=_outcome_of(error), took_ms=self.clock() - began_ms, detail=_detail_of(error))
        return read_answer(look, status, body, self.clock() - began_ms)

    async def _exchange(self, url: str, look: Look, model: str, timeout_ms: int) -> tuple[int, bytes]:
        request = request_for(look, model)
        headers = {"content-type": "application/json"} if request.body else {}
        if self.api_key and request.path.startswith("/v1/"):
            headers["authorization"] = f"Bearer {self.api_key}"
        limits = aiohttp.ClientTimeout(total=timeout_ms / 1000, sock_connect=timeout_ms / 2000)
        async with self.session.request(
            request.method,
            url + request.path,
            data=request.body or None,
            headers=headers,
            timeout=limits,
            allow_redirects=False,
        ) as response:
            body = bytearray()
            async for piece in response.content.iter_chunked(PIECE_BYTES):
                body += piece
                if len(body) > BODY_BYTES_MAX:
                    raise AnswerTooLargeError(f"an answer of more than {BODY_BYTES_MAX} bytes")
            return response.status, bytes(body)


def new_session(tls: ssl.SSLContext | None = None) -> aiohttp.ClientSession:
    """A session for readers. A connection serves one look, so that a refused one is seen as such and none is stale (EN-09).

    ``tls``: by which https replicas are checked; None: the machine's authorities.
    """
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, ssl=tls or True), trust_env=False)


def _outcome_of(error: Exception) -> Outcome:
    match error:
        case aiohttp.ConnectionTimeoutError():
            return Outcome.CONNECT_TIMEOUT
        case TimeoutError():
            return Outcome.READ_TIMEOUT
        case aiohttp.ClientConnectorError(os_error=ConnectionRefusedError()):
            return Outcome.REFUSED
        case aiohttp.ClientConnectorError() | aiohttp.InvalidURL():
            return Outcome.UNREACHABLE
        case _:
            return Outcome.CLOSED


def _detail_of(error: Exception) -> str:
    """The transport's own words, where they say more than the outcome does."""
    return "" if _outcome_of(error) in SELF_EXPLAINING else str(error)[:200]
