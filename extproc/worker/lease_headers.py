"""The lease as it stands in an attempt's headers, and the stamp that an answer carries back."""

import re
from dataclasses import dataclass
from typing import Final

from extproc.contract import headers
from extproc.contract.guard import Stamp
from extproc.worker.asgi import Scope, header_values

ATTEMPT_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
MILLISECONDS: Final = re.compile(r"[0-9]{1,15}", re.ASCII)


class MalformedLeaseError(Exception):
    """A header is missing, stands twice or can't be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHeaders:
    """What an attempt says of itself; ``valid_until_ms`` on the worker's clock."""

    attempt_id: str
    boot_id: str
    valid_until_ms: int


def carries_lease(scope: Scope) -> bool:
    """Whether a request claims a lease, well formed or not. An attempt id alone is only a name."""
    return bool(header_values(scope, headers.BOOT_ID) or header_values(scope, headers.VALID_UNTIL_MS))


def read_lease(scope: Scope) -> LeaseHeaders:
    """Raises MalformedLeaseError."""
    attempt_id = _only_value(scope, headers.ATTEMPT_ID)
    valid_until = _only_value(scope, headers.VALID_UNTIL_MS)
    if not ATTEMPT_ID.fullmatch(attempt_id) or not MILLISECONDS.fullmatch(valid_until):
        raise MalformedLeaseError
    return LeaseHeaders(attempt_id=attempt_id, boot_id=_only_value(scope, headers.BOOT_ID), valid_until_ms=int(valid_until))


def stamp_headers(stamp: Stamp) -> list[tuple[bytes, bytes]]:
    """The stamp as response headers."""
    return [(headers.BOOT_ID.encode(), stamp["boot_id"].encode()), (headers.NOW_MS.encode(), str(stamp["now_ms"]).encode())]


def without_token(scope: Scope) -> Scope:
    """The scope as the app sees it: the secret is not the app's, and must not reach its logs."""
    token = headers.TOKEN.encode()
    return {**scope, "headers": [(name, value) for name, value in scope["headers"] if name != token]}


def _only_value(scope: Scope, name: str) -> str:
    values = header_values(scope, name)
    if len(values) != 1:
        raise MalformedLeaseError
    return values[0].decode("latin-1")
