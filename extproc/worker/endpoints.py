"""The two calls that a processor makes to a guard: heartbeat and cancel (forms in extproc/contract/guard.py)."""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from extproc.contract.guard import (
    CANCEL_PATH_FORMAT,
    FACTS_PATH,
    HEARTBEAT_PATH,
    AttemptEntry,
    AttemptState,
    CancelAnswer,
    FactsAnswer,
    HeartbeatAnswer,
    StopState,
)
from extproc.worker.asgi import BodyCutError, BodyTooLargeError, Receive, Scope, Send, path_of, read_body, send_json
from extproc.worker.attempt_table import AttemptRow, AttemptTable
from extproc.worker.clock import ClockMs
from extproc.worker.lease_headers import ATTEMPT_ID
from extproc.worker.patrol import INTERVAL_S, Patrol

BODY_MAX: Final = 1_048_576
"""About 10,000 leases, ten times what one replica serves."""
CANCEL_WAIT_MAX_S: Final = 60.0
"""An app that does not end when it is cancelled is never acknowledged; the caller's own timeout is shorter."""
CANCEL_PATH: Final = re.compile(re.escape(CANCEL_PATH_FORMAT).replace(r"\{attempt_id\}", f"({ATTEMPT_ID.pattern})"), re.ASCII)


class MalformedHeartbeatError(Exception):
    """The body is not a HeartbeatRequest, or asks for a lease longer than is accepted."""


class StillRunningError(Exception):
    """The app did not end within the longest wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Everything under ``/_deltafence/``, for callers that have shown their token."""

    table: AttemptTable
    patrol: Patrol
    now_ms: ClockMs
    lease_ttl_max_ms: int
    facts: Mapping[str, str | int | list[str]]

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises sqlite3.Error where the shared table fails, and StillRunningError; then nothing was answered."""
        path = path_of(scope)
        cancelled = CANCEL_PATH.fullmatch(path)
        method = "GET" if path == FACTS_PATH else "POST"
        if path not in (HEARTBEAT_PATH, FACTS_PATH) and cancelled is None:
            await send_json(send, 404, {"error": "no such path"})
        elif scope["method"] != method:
            await send_json(send, 405, {"error": f"{method} only"}, [(b"allow", method.encode())])
        elif path == FACTS_PATH:
            facts = FactsAnswer(facts=dict(self.facts), boot_id=self.table.boot_id, now_ms=self.now_ms())
            await send_json(send, 200, facts)
        elif cancelled is not None:
            await self._answer_cancel(cancelled[1], send)
        else:
            await self._answer_heartbeat(receive, send)

    async def _answer_cancel(self, attempt_id: str, send: Send) -> None:
        row = await self._stopped(attempt_id)
        answer = CancelAnswer(
            boot_id=self.table.boot_id,
            now_ms=self.now_ms(),
            state=StopState(row.state),
            published_chunks=row.published_chunks,
        )
        await send_json(send, 200, answer)

    async def _stopped(self, attempt_id: str) -> AttemptRow:
        """The attempt's row once it can't publish any more, in whichever process it ran."""
        row = self.table.revoke(attempt_id, now_ms=self.now_ms())
        self.patrol.refresh()
        give_up_at_ms = self.now_ms() + CANCEL_WAIT_MAX_S * 1000
        while row.state is AttemptState.RUNNING:
            if self.now_ms() >= give_up_at_ms:
                raise StillRunningError
            await asyncio.sleep(INTERVAL_S)
            self.table.end_if_owner_died(row, now_ms=self.now_ms())
            row = self.table.read(attempt_id) or row
        return row

    async def _answer_heartbeat(self, receive: Receive, send: Send) -> None:
        now_ms = self.now_ms()
        try:
            leases = parse_heartbeat(await read_body(receive, limit=BODY_MAX), valid_until_max_ms=now_ms + self.lease_ttl_max_ms)
        except BodyCutError:
            return
        except BodyTooLargeError:
            await send_json(send, 413, {"error": f"more than {BODY_MAX} bytes"})
            return
        except MalformedHeartbeatError as error:
            await send_json(send, 400, {"error": str(error)})
            return
        if leases:
            self.table.renew(leases, now_ms=now_ms)
            self.patrol.refresh()
        answer = HeartbeatAnswer(
            attempts=[self._entry(attempt_id) for attempt_id, _ in leases],
            boot_id=self.table.boot_id,
            now_ms=self.now_ms(),
        )
        await send_json(send, 200, answer)

    def _entry(self, attempt_id: str) -> AttemptEntry:
        row = self.table.read(attempt_id)
        if row is None:
            return AttemptEntry(attempt_id=attempt_id, state=AttemptState.UNKNOWN, published_chunks=0)
        here = self.patrol.published_chunks(attempt_id)
        return AttemptEntry(
            attempt_id=attempt_id, state=row.state, published_chunks=row.published_chunks if here is None else here
        )


def parse_heartbeat(body: bytes, *, valid_until_max_ms: int) -> list[tuple[str, int]]:
    """The leases ``(attempt_id, valid_until_ms)`` of a HeartbeatRequest; raises MalformedHeartbeatError."""
    try:
        document = json.loads(body)
        leases = [(entry["attempt_id"], entry["valid_until_ms"]) for entry in document["leases"]]
    except (ValueError, TypeError, KeyError) as error:
        raise MalformedHeartbeatError(f"not a heartbeat: {error!r}") from error
    for attempt_id, valid_until_ms in leases:
        if not isinstance(attempt_id, str) or not ATTEMPT_ID.fullmatch(attempt_id):
            raise MalformedHeartbeatError("attempt_id must be 1 to 64 letters, digits, _ or -")
        if type(valid_until_ms) is not int or not 0 <= valid_until_ms <= valid_until_max_ms:
            raise MalformedHeartbeatError(f"valid_until_ms of {attempt_id} must be a whole number up to {valid_until_max_ms}")
    return leases
