"""The lease guard: ASGI middleware that lets an attempt publish only while its lease holds (R6, R7, DESIGN section 5).

``vllm serve … --middleware extproc.worker.LeaseGuard`` constructs it with the app. A request without lease headers passes
untouched. An attempt with them is claimed once, checked before every message that it sends, and stopped when its lease ends
or is revoked: the app's task is cancelled, by which vLLM aborts the generation and frees its slot, and the connection is
cut.

One patrol per process looks at the running attempts every few milliseconds. It is what frees the slot of an app that is
silent, and what carries a cancel or a renewal over that reached a sibling process (extproc/worker/attempt_table.py).
"""

import hmac
import logging
import os
import sqlite3
import sys
from typing import Final

from extproc.contract import headers
from extproc.contract.guard import PATH_PREFIX, REFUSAL_STATUS, GuardRefusal, Stamp
from extproc.decision.lease import may_publish
from extproc.worker.asgi import App, Receive, Scope, Send, header_values, path_of, send_json
from extproc.worker.attempt_table import AttemptTable
from extproc.worker.clock import ClockMs, worker_now_ms
from extproc.worker.command_line import facts_told
from extproc.worker.endpoints import Endpoints, StillRunningError
from extproc.worker.guarded_attempt import GuardedAttempt
from extproc.worker.lease_headers import (
    LeaseHeaders,
    MalformedLeaseError,
    carries_lease,
    read_lease,
    stamp_headers,
    without_token,
)
from extproc.worker.patrol import Patrol
from extproc.worker.settings import GuardSettings

log = logging.getLogger("deltafence.guard")

GENERATION_PATHS: Final = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/inference/v1/generate",
        "/invocations",
    }
)
"""Where vLLM 0.32 generates; with ``require_lease`` they answer nobody but a gateway."""


class LeaseGuard:
    """The middleware. Raises SettingsError or StateDirectoryError when the server starts, never later."""

    def __init__(self, app: App, *, settings: GuardSettings | None = None, now_ms: ClockMs = worker_now_ms) -> None:
        self._app = app
        self._settings = settings or GuardSettings.from_environment(os.environ)
        self._now_ms = now_ms
        self._table = AttemptTable(state_dir=self._settings.state_dir, remember_ms=self._settings.lease_ttl_max_ms)
        for row in self._table.running_elsewhere():
            self._table.end_if_owner_died(row, now_ms=now_ms())
        self._patrol = Patrol(self._table, now_ms)
        self._endpoints = Endpoints(
            table=self._table,
            patrol=self._patrol,
            now_ms=now_ms,
            lease_ttl_max_ms=self._settings.lease_ttl_max_ms,
            facts=facts_told(sys.argv),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI 3. Everything but HTTP, and every request that is not the gateway's, goes to the app as it came."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif path_of(scope).startswith(PATH_PREFIX):
            await self._answer_gateway(scope, receive, send)
        elif carries_lease(scope):
            await self._serve_attempt(scope, receive, send)
        elif self._settings.require_lease and path_of(scope) in GENERATION_PATHS:
            await self._refuse(send, GuardRefusal.LEASE_REQUIRED)
        else:
            await self._app(scope, receive, send)

    def close(self) -> None:
        """Give the shared table back, once nothing is served any more."""
        self._table.close()

    async def _answer_gateway(self, scope: Scope, receive: Receive, send: Send) -> None:
        if refusal := self._refuse_token(scope):
            await self._refuse(send, refusal)
            return
        try:
            await self._endpoints.answer(scope, receive, send)
        except StillRunningError:
            await self._refuse(send, GuardRefusal.STILL_RUNNING)
        except sqlite3.Error as error:
            log.error("guard call failed: %s", error)
            await self._refuse(send, GuardRefusal.GUARD_UNAVAILABLE)

    async def _serve_attempt(self, scope: Scope, receive: Receive, send: Send) -> None:
        admitted = self._admit(scope)
        if isinstance(admitted, GuardRefusal):
            await self._refuse(send, admitted)
            return
        attempt = GuardedAttempt(lease=admitted, send=send, now_ms=self._now_ms)
        self._patrol.add(attempt)
        try:
            await attempt.run(self._app, without_token(scope), receive)
        finally:
            self._patrol.remove(attempt)
        if attempt.stopped_by is not None and not attempt.has_answered:
            await self._refuse(send, attempt.stopped_by)
        # An answer that had begun is left without its end: the server logs that and cuts the connection.

    def _admit(self, scope: Scope) -> LeaseHeaders | GuardRefusal:
        if refusal := self._refuse_token(scope):
            return refusal
        try:
            lease = read_lease(scope)
        except MalformedLeaseError:
            return GuardRefusal.MALFORMED_LEASE
        if lease.boot_id != self._table.boot_id:
            return GuardRefusal.WRONG_BOOT_ID
        try:
            return self._claim(lease) or lease
        except sqlite3.Error as error:
            log.error("attempt %s refused, its claim failed: %s", lease.attempt_id, error)
            return GuardRefusal.GUARD_UNAVAILABLE

    def _claim(self, lease: LeaseHeaders) -> GuardRefusal | None:
        now_ms = self._now_ms()
        if not may_publish(valid_until_ms=lease.valid_until_ms, now_ms=now_ms):
            refusal = GuardRefusal.LEASE_EXPIRED
        elif lease.valid_until_ms > now_ms + self._settings.lease_ttl_max_ms:
            refusal = GuardRefusal.LEASE_TOO_LONG
        else:
            return self._table.claim(attempt_id=lease.attempt_id, valid_until_ms=lease.valid_until_ms, now_ms=now_ms)
        # A late second copy must not hear that its lease has ended while the first one runs on a renewed lease: that would be
        # taken for a proof (tests/simulation, ExpiryBeforeDuplicate).
        return self._table.refusal_of_known(lease.attempt_id, now_ms=now_ms) or refusal

    def _refuse_token(self, scope: Scope) -> GuardRefusal | None:
        given = header_values(scope, headers.TOKEN)
        if len(given) != 1:
            return GuardRefusal.TOKEN_MISSING
        return None if hmac.compare_digest(given[0], self._settings.token) else GuardRefusal.TOKEN_WRONG

    async def _refuse(self, send: Send, refusal: GuardRefusal) -> None:
        status = REFUSAL_STATUS[refusal]
        named = (headers.REFUSAL.encode(), refusal.encode())
        if status in (401, 403):  # a stranger learns nothing more
            await send_json(send, status, {"refusal": refusal}, [named])
            return
        stamp = Stamp(boot_id=self._table.boot_id, now_ms=self._now_ms())
        await send_json(send, status, {"refusal": refusal, **stamp}, [named, *stamp_headers(stamp)])
