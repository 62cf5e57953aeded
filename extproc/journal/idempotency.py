"""Keys that bind repeats to one logical request, claimed in one transaction with what the journal knows of that request.

Of what became of the request nothing is stored beside the key: it is read off the request's own events, so that the two can't
disagree. Liveness: see storage/owner.py; a processor that lost its request can't cross its boundary any more, whatever it
believes, so at most one of the runs under a key ever delivers.
"""

import asyncio
import json
import logging
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from extproc.decision.idempotency import BoundRequest, ClaimOutcome, decide_claim
from extproc.journal import transactions
from extproc.journal.durable import DurableJournal
from extproc.journal.interface import JournalUnavailable, RequestTakenOver
from extproc.journal.records import EventKind, JournalEvent, RequestFacts, fold_all
from extproc.journal.transactions import SQL
from extproc.storage.owner import Owner
from extproc.storage.script import Database, Result, Script, ScriptFactory, StorageUnavailable

TTL_MS: Final = 24 * 3_600_000
"""How long a key is remembered, counted from its last run; the draft asks for a published rule, and this is Stripe's."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyClaim:
    """What a request asks for. ``request_id`` is a fresh one, taken where the key is new."""

    key_hash: bytes
    fingerprint: bytes
    request_id: str
    ttl_ms: int = TTL_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """A whole answer as it was delivered."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """What became of a claim. With ``NEW`` the caller runs the request as ``request_id`` and records its end, whatever happens.

    ``run``: 1 for a key's first run, more where earlier ones delivered nothing. ``facts`` are of the request that the key names.
    """

    outcome: ClaimOutcome
    request_id: str
    run: int = 1
    facts: RequestFacts | None = None
    answer: StoredAnswer | None = None


class IdempotencyKeys(Protocol):
    """Both methods raise JournalUnavailable; a keyed request is then refused, also where others are served without a journal."""

    async def claim(self, claim: KeyClaim) -> Claimed:
        """Bind a key, or learn what it is bound to. Of any number of claims at once one is NEW."""

    async def store_answer(self, request_id: str, answer: StoredAnswer) -> None:
        """Keep the whole answer for repeats; call it before the request's end is recorded and before its last byte goes out."""


class DurableKeys:
    """IdempotencyKeys in the journal's own database."""

    def __init__(self, database: Database, owner: Owner, journal: DurableJournal) -> None:
        self._database = database
        self._owner = owner
        self._journal = journal
        self._undoing: set[asyncio.Task[None]] = set()

    async def claim(self, claim: KeyClaim) -> Claimed:
        await self._journal.flush()  # the end of an earlier run may still wait in this process
        claiming = asyncio.ensure_future(self._write(partial(claim_key, self._owner, claim)))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            undoing = asyncio.create_task(self._undo(claiming), name="give a claimed key back")
            self._undoing.add(undoing)
            undoing.add_done_callback(self._undoing.discard)
            raise

    async def store_answer(self, request_id: str, answer: StoredAnswer) -> None:
        await self._journal.flush()
        if not await self._write(partial(insert_answer, self._owner, request_id, answer)):
            raise RequestTakenOver(f"request {request_id} belongs to another processor")

    async def close(self) -> None:
        """Wait for what is being given back."""
        await asyncio.gather(*self._undoing)

    async def _write(self, script: ScriptFactory[Result]) -> Result:
        try:
            return await self._database.write(script)
        except StorageUnavailable as error:
            raise JournalUnavailable(str(error)) from error

    async def _undo(self, claiming: "asyncio.Future[Claimed]") -> None:
        """The caller left while its claim was on the way; nobody will run what it has won."""
        try:
            claimed = await claiming
            if claimed.outcome is ClaimOutcome.NEW:
                await self._write(partial(abandon, self._owner, claimed.request_id))
        except JournalUnavailable as error:
            _log.warning("a key claimed for a client that left stays taken until this process ends: %s", error)


# --- scripts ---------------------------------------------------------------------------------------------------------------


def claim_key(owner: Owner, claim: KeyClaim) -> Script[Claimed]:
    """Lock the key, then its request; decide by the request's events."""
    clock = yield SQL("clock")
    now_ms = int(clock[0][0])
    bound = yield from _bind_or_lock(claim, now_ms + claim.ttl_ms)
    if bound is None:
        yield from _open_request(owner, claim.request_id, now_ms)
        return Claimed(outcome=ClaimOutcome.NEW, request_id=claim.request_id)
    request_id, fingerprint, expires_at_ms = bound
    if expires_at_ms <= now_ms:
        yield SQL(
            "rebind_key",
            key_hash=claim.key_hash,
            fingerprint=claim.fingerprint,
            request_id=claim.request_id,
            expires_at_ms=now_ms + claim.ttl_ms,
        )
        yield from _open_request(owner, claim.request_id, now_ms)
        return Claimed(outcome=ClaimOutcome.NEW, request_id=claim.request_id)
    running, events = yield from _look_at(owner, request_id)
    facts = fold_all(events)
    outcome = decide_claim(
        BoundRequest(
            same_request=bytes(fingerprint) == claim.fingerprint,
            running=running,
            outcome=facts.outcome if facts is not None else None,
            first_delta_sent=facts is not None and facts.first_delta_sent,
        )
    )
    answer = None
    if outcome is ClaimOutcome.NEW:
        yield SQL("renew_key", key_hash=claim.key_hash, expires_at_ms=now_ms + claim.ttl_ms)
        yield from _open_request(owner, request_id, now_ms)
    elif outcome in (ClaimOutcome.COMPLETED, ClaimOutcome.PARTIAL):
        # An answer is stored only when it is whole: also where its processor died before it could say that it was delivered.
        answer = yield from _select_answer(request_id)
    runs = sum(event.kind is EventKind.ADMITTED for event in events)
    return Claimed(outcome=outcome, request_id=request_id, run=runs + 1, facts=facts, answer=answer)


def _bind_or_lock(claim: KeyClaim, expires_at_ms: int) -> Script[tuple[str, bytes, int] | None]:
    """None where the key was free and is bound now; else what it is bound to, locked."""
    while True:
        inserted = yield SQL(
            "insert_key",
            key_hash=claim.key_hash,
            fingerprint=claim.fingerprint,
            request_id=claim.request_id,
            expires_at_ms=expires_at_ms,
        )
        if inserted:
            return None
        rows = yield SQL("lock_key", key_hash=claim.key_hash)
        if rows:  # else it expired and was deleted between the two statements
            request_id, fingerprint, bound_until_ms = rows[0]
            return request_id, fingerprint, bound_until_ms


def _look_at(owner: Owner, request_id: str) -> Script[tuple[bool, tuple[JournalEvent, ...]]]:
    """Whether the request runs, and its events; one that a dead processor left open is ended first."""
    rows = yield SQL("lock_request", owner=owner.processor_id, request_id=request_id)
    is_open, alive = (bool(rows[0][0]), bool(rows[0][1])) if rows else (False, False)
    if is_open and not alive:
        yield from transactions.settle_lost_request(owner, request_id)
    events = yield from transactions.select_events([request_id])
    return is_open and alive, events.get(request_id, ())


def _open_request(owner: Owner, request_id: str, at_ms: int) -> Script[None]:
    yield SQL("open_request", owner=owner.processor_id, request_id=request_id, at_ms=at_ms)


def abandon(owner: Owner, request_id: str) -> Script[None]:
    """Undo a claim that nobody ran: as if the request had never been opened (again)."""
    yield SQL("lock_request", owner=owner.processor_id, request_id=request_id)
    events = (yield from transactions.select_events([request_id])).get(request_id, ())
    facts = fold_all(events)
    if facts is None:
        yield SQL("delete_request", owner=owner.processor_id, request_id=request_id)
    elif facts.outcome is not None:
        yield SQL("set_outcome", owner=owner.processor_id, request_id=request_id, outcome=facts.outcome)


def insert_answer(owner: Owner, request_id: str, answer: StoredAnswer) -> Script[bool]:
    """Whether the request is this processor's, and the answer is stored."""
    owned = yield SQL("add_stored_bytes", owner=owner.processor_id, request_id=request_id, stored_bytes=len(answer.body))
    if owned:
        headers = json.dumps(answer.headers)
        yield SQL("insert_answer", request_id=request_id, status=answer.status, headers=headers, body=answer.body)
    return bool(owned)


def _select_answer(request_id: str) -> Script[StoredAnswer | None]:
    rows = yield SQL("select_answer", request_id=request_id)
    if not rows:
        return None
    status, headers, body = rows[0]
    pairs = tuple((str(name), str(value)) for name, value in json.loads(headers))
    return StoredAnswer(status=status, headers=pairs, body=bytes(body))
