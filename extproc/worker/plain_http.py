"""One HTTP/1.1 exchange over the standard library: what the probe asks its server with.

``Connection: close``, one deadline for everything, bounded answers. A cancelled exchange breaks its connection off at once, which
vLLM takes as the client's leaving and aborts the request.
"""

import asyncio
import socket
import ssl
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import urlsplit

from extproc.contract.urls import without_secrets
from extproc.decision.looks import BODY_BYTES_MAX, LookRequest, Outcome

HEAD_BYTES_MAX: Final = 65_536
_PORTS: Final = {"http": 80, "https": 443}


class ExchangeError(Exception):
    """No whole answer; ``outcome`` says how it ended, the message adds the transport's words."""

    def __init__(self, outcome: Outcome, detail: str = "") -> None:
        super().__init__(detail)
        self.outcome = outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server that is asked. ``api_key`` is sent as a bearer token where it is not empty."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    api_key: str = ""

    @classmethod
    def parse(cls, url: str, *, tls: ssl.SSLContext | None = None, api_key: str = "") -> Self:
        """``http://host[:port]`` or ``https://host[:port]``. Raises ValueError with the reason."""
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ValueError(f"{without_secrets(url)!r} is not http://HOST[:PORT] or https://HOST[:PORT]")
        if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
            raise ValueError(f"{without_secrets(url)!r} goes beyond host and port")
        context = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        return cls(host=parts.hostname, port=parts.port or _PORTS[parts.scheme], tls=context, api_key=api_key)

    @property
    def authority(self) -> str:
        """As a Host header says it (RFC 9110 section 7.2)."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


async def exchange(target: Target, request: LookRequest, *, connect_ms: int, total_ms: int) -> tuple[int, bytes]:
    """Status and body of the answer. Raises ExchangeError."""
    try:
        async with asyncio.timeout(total_ms / 1000):
            reader, writer = await _connect(target, connect_ms)
            try:
                writer.write(_encode(target, request))
                return await _read_answer(reader)
            finally:
                writer.transport.abort()
    except TimeoutError:
        raise ExchangeError(Outcome.READ_TIMEOUT) from None
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ssl.SSLError, ValueError) as error:
        raise ExchangeError(Outcome.CLOSED, str(error)) from error


async def _connect(target: Target, connect_ms: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The first address of the host that answers; refused only where none does and one of them refused."""
    try:
        async with asyncio.timeout(connect_ms / 1000):
            errors: list[OSError] = []
            loop = asyncio.get_running_loop()
            for family, _, _, _, address in await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM):
                try:
                    return await asyncio.open_connection(
                        str(address[0]),
                        target.port,
                        family=family,
                        ssl=target.tls,
                        server_hostname=target.host if target.tls else None,
                        limit=HEAD_BYTES_MAX,
                    )
                except OSError as error:
                    errors.append(error)
    except TimeoutError:
        raise ExchangeError(Outcome.CONNECT_TIMEOUT) from None
    except OSError as error:
        raise ExchangeError(Outcome.UNREACHABLE, str(error)) from error
    if any(isinstance(error, ConnectionRefusedError) for error in errors):
        raise ExchangeError(Outcome.REFUSED)
    raise ExchangeError(Outcome.UNREACHABLE, "; ".join(str(error) for error in errors))


def _encode(target: Target, request: LookRequest) -> bytes:
    lines = [
        f"{request.method} {request.path} HTTP/1.1",
        f"host: {target.authority}",
        "user-agent: deltafence-probe",
        "accept: */*",
        "connection: close",
    ]
    if target.api_key and request.path.startswith("/v1/"):
        lines.append(f"authorization: Bearer {target.api_key}")
    if request.body:
        lines += ["content-type: application/json", f"content-length: {len(request.body)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + request.body


async def _read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Raises IncompleteReadError, LimitOverrunError, ValueError."""
    status, headers = 100, dict[str, str]()
    while 100 <= status < 200:
        status, headers = _read_head(await reader.readuntil(b"\r\n\r\n"))
    if status in (204, 304):
        return status, b""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return status, await _read_chunks(reader)
    if "content-length" in headers:
        return status, await reader.readexactly(_bounded(int(headers["content-length"])))
    return status, await _read_to_end(reader)


def _read_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"not HTTP/1: {first[:40]!r}")
    pairs = (line.partition(":") for line in lines if line)
    return int(rest[:3]), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    """RFC 9112 section 7.1; trailers are left unread, since the connection is closed anyway."""
    body = bytearray()
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        _bounded(len(body) + size)
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    return bytes(body)


async def _read_to_end(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while piece := await reader.read(65_536):
        body += piece
        _bounded(len(body))
    return bytes(body)


def _bounded(size: int) -> int:
    if not 0 <= size <= BODY_BYTES_MAX:
        raise ValueError(f"an answer of {size} bytes is more than {BODY_BYTES_MAX}")
    return size


def tls_context(*, ca_file: str | None, insecure: bool) -> ssl.SSLContext:
    """For an https target. ``insecure`` skips verification: for a self-signed server in the same pod. Raises OSError."""
    context = ssl.create_default_context(cafile=ca_file)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
