"""Idempotency keys for one process's lifetime, beside the journal in memory."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from extproc.decision.idempotency import BoundRequest, ClaimOutcome, decide_claim
from extproc.journal.idempotency import Claimed, KeyClaim, StoredAnswer
from extproc.journal.memory import MemoryJournal
from extproc.journal.records import EventKind, fold_all

KEYS_MAX: Final = 10_000
"""As many as the journal keeps requests: a key whose request was forgotten protects nothing."""
ANSWERS_BYTES_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class _Bound:
    fingerprint: bytes
    request_id: str
    expires_at_ms: int


class MemoryKeys:
    """The IdempotencyKeys interface over dictionaries. ``now_ms``: any clock that only goes forward."""

    def __init__(self, journal: MemoryJournal, now_ms: Callable[[], int]) -> None:
        self._journal = journal
        self._now_ms = now_ms
        self._keys: OrderedDict[bytes, _Bound] = OrderedDict()
        self._answers: OrderedDict[str, StoredAnswer] = OrderedDict()
        self._answers_bytes = 0

    async def claim(self, claim: KeyClaim) -> Claimed:
        now_ms = self._now_ms()
        bound = self._keys.get(claim.key_hash)
        if bound is None or bound.expires_at_ms <= now_ms:
            return self._bind(claim, claim.request_id, now_ms, Claimed(outcome=ClaimOutcome.NEW, request_id=claim.request_id))
        request_id = bound.request_id
        events = await self._journal.events(request_id)
        facts = fold_all(events)
        outcome = decide_claim(
            BoundRequest(
                same_request=bound.fingerprint == claim.fingerprint,
                running=self._journal.is_open(request_id),
                outcome=facts.outcome if facts is not None else None,
                first_delta_sent=facts is not None and facts.first_delta_sent,
            )
        )
        runs = sum(event.kind is EventKind.ADMITTED for event in events)
        answer = self._answers.get(request_id) if outcome in (ClaimOutcome.COMPLETED, ClaimOutcome.PARTIAL) else None
        claimed = Claimed(outcome=outcome, request_id=request_id, run=runs + 1, facts=facts, answer=answer)
        return self._bind(claim, request_id, now_ms, claimed) if outcome is ClaimOutcome.NEW else claimed

    async def store_answer(self, request_id: str, answer: StoredAnswer) -> None:
        self._answers[request_id] = answer
        self._answers_bytes += len(answer.body)
        while self._answers_bytes > ANSWERS_BYTES_MAX:
            _, oldest = self._answers.popitem(last=False)
            self._answers_bytes -= len(oldest.body)

    def _bind(self, claim: KeyClaim, request_id: str, now_ms: int, claimed: Claimed) -> Claimed:
        self._journal.open(request_id)
        self._keys.pop(claim.key_hash, None)
        self._keys[claim.key_hash] = _Bound(claim.fingerprint, request_id, now_ms + claim.ttl_ms)
        if len(self._keys) > KEYS_MAX:
            self._keys.popitem(last=False)
        return claimed
