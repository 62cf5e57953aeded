"""The calls to a guard over HTTP, and what their answers say (wire forms in extproc/contract/guard.py)."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import aiohttp

from extproc.contract import headers
from extproc.contract.guard import CANCEL_PATH_FORMAT, FACTS_PATH, HEARTBEAT_PATH, HeartbeatRequest, StopState
from extproc.decision.identity import Facts, read_told
from extproc.decision.lease import Stamp

ClockMs = Callable[[], int]
"""This processor's monotonic clock, milliseconds."""

Beaten = Callable[[int, bool], None]
"""Told how many leases a beat carried and whether it was answered. Must neither wait nor raise."""

ANSWER_SHOWN_MAX: Final = 100


def unheeded(leases: int, answered: bool) -> None:
    """Where nobody counts beats."""


class GuardUnheardError(Exception):
    """No answer that proves anything: a connection that failed, a timeout, an error status, or an answer that is none."""


class GuardAbsentError(GuardUnheardError):
    """The replica answered as one without a guard."""


class TokenRefusedError(GuardUnheardError):
    """The guard does not know our secret."""


class NotListeningError(GuardUnheardError):
    """The replica's address refused the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """A cancel's answer, sent once the attempt had stopped."""

    stamp: Stamp
    state: StopState


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldFacts:
    """Facts, and the process that they are of: None where nobody says which one."""

    facts: Facts
    boot_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardClient:
    """Calls guards with one secret. The session should close idle connections before uvicorn does, after 5 s (CASES EN-09)."""

    session: aiohttp.ClientSession
    token: str
    clock_ms: ClockMs
    beaten: Beaten = unheeded

    async def beat(self, url: str, body: HeartbeatRequest, *, timeout_ms: int) -> Stamp:
        """Send renewals and get a stamp; raises GuardUnheardError."""
        asked_at_ms = self.clock_ms()
        try:
            answer = await self._call("POST", url + HEARTBEAT_PATH, body, timeout_ms)
            stamp = self._stamp(answer, asked_at_ms)
        except GuardUnheardError:
            self.beaten(len(body["leases"]), False)
            raise
        self.beaten(len(body["leases"]), True)
        return stamp

    async def cancel(self, url: str, attempt_id: str, *, timeout_ms: int) -> Acknowledgement:
        """Ask for an attempt's end and wait until it has come; raises GuardUnheardError."""
        asked_at_ms = self.clock_ms()
        answer = await self._call("POST", url + CANCEL_PATH_FORMAT.format(attempt_id=attempt_id), None, timeout_ms)
        try:
            state = StopState(str(answer.get("state")))
        except ValueError as error:
            raise GuardUnheardError(str(error)) from error
        return Acknowledgement(stamp=self._stamp(answer, asked_at_ms), state=state)

    async def facts(self, url: str, *, timeout_ms: int) -> ToldFacts:
        """What the server's command line says of its model; raises GuardUnheardError."""
        asked_at_ms = self.clock_ms()
        answer = await self._call("GET", url + FACTS_PATH, None, timeout_ms)
        try:
            facts = read_told(answer.get("facts"))
        except ValueError as error:
            raise GuardUnheardError(f"facts that can't be read: {error}") from error
        return ToldFacts(facts=facts, boot_id=self._stamp(answer, asked_at_ms).boot_id)

    async def _call(self, method: str, url: str, body: HeartbeatRequest | None, timeout_ms: int) -> dict[str, object]:
        timeout = aiohttp.ClientTimeout(total=timeout_ms / 1000)
        secret = {headers.TOKEN: self.token}
        try:
            async with self.session.request(method, url, json=body, headers=secret, timeout=timeout) as response:
                answer = await response.read()
        except aiohttp.ClientConnectorError as error:
            kind = NotListeningError if isinstance(error.os_error, ConnectionRefusedError) else GuardUnheardError
            raise kind(str(error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise GuardUnheardError(repr(error)) from error
        match response.status:
            case 200:
                return _decode_object(answer)
            case 401 | 403:
                raise TokenRefusedError(f"status {response.status}")
            case 404 | 405:
                raise GuardAbsentError(f"status {response.status}")
            case status:
                raise GuardUnheardError(f"status {status}: {_shown(answer)}")

    def _stamp(self, answer: dict[str, object], asked_at_ms: int) -> Stamp:
        boot_id, now_ms = answer.get("boot_id"), answer.get("now_ms")
        if not isinstance(boot_id, str) or not isinstance(now_ms, int) or isinstance(now_ms, bool):
            raise GuardUnheardError(f"no stamp in {answer}"[:ANSWER_SHOWN_MAX])
        return Stamp(boot_id=boot_id, now_ms=now_ms, asked_at_ms=asked_at_ms, received_at_ms=self.clock_ms())


def _decode_object(answer: bytes) -> dict[str, object]:
    try:
        document = json.loads(answer)
    except ValueError as error:
        raise GuardUnheardError(f"not JSON: {_shown(answer)}") from error
    if not isinstance(document, dict):
        raise GuardUnheardError(f"not an object: {_shown(answer)}")
    return document


def _shown(answer: bytes) -> str:
    return repr(answer[:ANSWER_SHOWN_MAX])
