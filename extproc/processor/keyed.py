"""Requests with an Idempotency-Key: what is asked of the journal, and what a repeat is answered (R9, R11)."""

import logging
from dataclasses import dataclass
from typing import Final

from extproc.contract import headers as names
from extproc.contract.errors import FORMS, ClientError, ErrorCode
from extproc.decision.idempotency import REFUSALS, ClaimOutcome, InvalidKey, fingerprint, hash_key, parse_key
from extproc.journal.idempotency import TTL_MS, Claimed, IdempotencyKeys, KeyClaim, StoredAnswer
from extproc.journal.interface import Journal, JournalUnavailable
from extproc.processor import wording
from extproc.processor.client_stream import ClientStream, Head, Headers, Metadata, Write, make_head
from extproc.processor.intake import RequestRejected
from extproc.processor.messages import RequestHeaders
from extproc.sse.dialects import Dialect
from extproc.sse.terminal import error_body

MESSAGES: Final = {
    ClaimOutcome.IN_PROGRESS: "The first request with this Idempotency-Key is still running.",
    ClaimOutcome.PARTIAL: "A request with this Idempotency-Key broke off after part of its answer had been delivered.",
    ClaimOutcome.COMPLETED: "The request with this Idempotency-Key was answered in full; the answer is not kept.",
    ClaimOutcome.KEY_REUSED: "This Idempotency-Key belongs to another request.",
}

_log = logging.getLogger(__name__)


def read_claim(
    head: RequestHeaders, body: bytes, *, request_id: str, secret: bytes, caller_header: str, ttl_ms: int = TTL_MS
) -> KeyClaim | None:
    """What a request asks of its key, None where it has none. Raises RequestRejected for what is no key."""
    values = [value for name, value in head.headers if name == names.IDEMPOTENCY_KEY]
    try:
        key = parse_key(values)
    except InvalidKey as error:
        raise RequestRejected(ErrorCode.INVALID_IDEMPOTENCY_KEY, str(error)) from error
    if key is None:
        return None
    caller = next((value for name, value in head.headers if name == caller_header), "")
    return KeyClaim(
        key_hash=hash_key(secret, caller, key),
        fingerprint=fingerprint(head.method, head.path, body),
        request_id=request_id,
        ttl_ms=ttl_ms,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Keying:
    """What a processor needs to honour keys. ``secret`` is the same in all gateways that share a database."""

    keys: IdempotencyKeys
    journal: Journal
    """Of requests with a key. Their boundaries are recorded or not crossed, also where others are served without a journal."""
    secret: bytes
    caller_header: str = "authorization"
    """The header that tells callers apart: a key is scoped to its caller."""
    ttl_ms: int = TTL_MS
    answer_bytes_max: int = 8 << 20
    """A longer answer is not kept for ``journal.replay``."""

    async def claim(self, head: RequestHeaders, body: bytes, request_id: str) -> Claimed | None:
        """What becomes of a request's key; None where it has none. Raises RequestRejected."""
        claim = read_claim(
            head,
            body,
            request_id=request_id,
            secret=self.secret,
            caller_header=self.caller_header,
            ttl_ms=self.ttl_ms,
        )
        if claim is None:
            return None
        try:
            return await self.keys.claim(claim)
        except JournalUnavailable as error:
            _log.warning("a request with an Idempotency-Key is refused: %s", error)
            message = "the Idempotency-Key can't be honoured now, since the journal is unavailable; send the request again later"
            raise RequestRejected(ErrorCode.JOURNAL_UNAVAILABLE, message) from error


async def answer_repeat(client: ClientStream, dialect: Dialect, claimed: Claimed, *, replay: bool) -> None:
    """Answer a request whose key is taken: with the stored answer where there is one and its route wants that, else with the
    facts of the request that has the key (``replay``: policy ``journal.replay``)."""
    metadata: Metadata = {"request_id": claimed.request_id, "phase": "ended", "outcome": "repeat", "reason": str(claimed.outcome)}
    if replay and claimed.answer is not None:
        await client.begin(make_head(claimed.answer.status, [*claimed.answer.headers, (names.REPLAYED, "true")]))
        await client.end(claimed.answer.body, metadata)
        return
    error = repeat_error(claimed)
    await client.answer(
        FORMS[error.code].status,
        wording.error_headers(error, None),
        error_body(dialect, error),
        details=f"deltafence_{error.code}",
        metadata=metadata,
    )


def repeat_error(claimed: Claimed) -> ClientError:
    """The facts of the request that has the key. Of a request that is another one, nothing is told but that."""
    facts = claimed.facts if claimed.outcome is not ClaimOutcome.KEY_REUSED else None
    return ClientError(
        code=REFUSALS[claimed.outcome],
        message=MESSAGES[claimed.outcome],
        request_id=claimed.request_id if claimed.outcome is not ClaimOutcome.KEY_REUSED else "",
        partial_output=claimed.outcome is ClaimOutcome.PARTIAL,
        delivered_output_tokens=facts.delivered_output_tokens if facts is not None else 0,
        token_count_source=facts.delivered_output_tokens_source if facts is not None else "counted",
        reason=(facts.reason if facts is not None else None) or str(claimed.outcome),
        attempts=len(facts.attempts) if facts is not None else 0,
    )


class KeptClientStream(ClientStream):
    """Writes one answer and keeps a copy. For routes with ``journal.replay`` or ``journal.store_text``.

    For a replay the copy is stored before the outcome is: whoever learns that the answer is complete can have it. One that is
    longer than ``bytes_max`` is not stored, and its repeats get the facts.
    """

    def __init__(self, write: Write, *, keys: IdempotencyKeys, bytes_max: int) -> None:
        super().__init__(write)
        self._keys = keys
        self._request_id = ""
        self._bytes_max = bytes_max
        self._status = 0
        self._headers: tuple[tuple[str, str], ...] = ()
        self._body = bytearray()
        self._too_long = False

    def keep_for(self, request_id: str) -> None:
        """The request has a key, so its answer is worth keeping."""
        self._request_id = request_id

    @property
    def copy(self) -> bytes:
        """What was written, up to ``bytes_max``."""
        return bytes(self._body)

    async def begin(self, head: Head) -> None:
        self._status, self._headers = head.status, tuple(head.headers)
        await super().begin(head)

    async def write(self, data: bytes) -> None:
        self._keep(data)
        await super().write(data)

    async def keep(self, last: bytes) -> None:
        if not self._request_id or self._too_long or len(self._body) + len(last) > self._bytes_max:
            return
        answer = StoredAnswer(status=self._status, headers=self._headers, body=self.copy + last)
        try:
            await self._keys.store_answer(self._request_id, answer)
        except JournalUnavailable as error:
            _log.error("the answer of %s is not kept for repeats: %s", self._request_id, error)

    async def end(self, data: bytes, metadata: Metadata) -> None:
        self._keep(data)
        await super().end(data, metadata)

    async def answer(self, status: int, headers: Headers, body: bytes, *, details: str, metadata: Metadata) -> None:
        self._keep(body)
        await super().answer(status, headers, body, details=details, metadata=metadata)

    def _keep(self, data: bytes) -> None:
        room = self._bytes_max - len(self._body)
        self._body += data[:room]
        self._too_long = self._too_long or len(data) > room
