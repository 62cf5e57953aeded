"""The promises, one function each, over evidence from outside the processor (R18). Pure.

A rule yields in words what breaks it. Each has a gateway in tests/faults that is broken on purpose and that this rule catches.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum, auto
from itertools import pairwise
from typing import Final

from extproc.decision.effects import Outcome
from extproc.faults.answers import Answer, is_counted, voices
from extproc.faults.evidence import CONTENT_KINDS, AttemptEvidence, Evidence, JournalEntry
from extproc.faults.expectations import Ending
from extproc.journal.interface import History
from extproc.journal.records import EventKind, JournalEvent
from extproc.journal.verify import verify

CLOCK_STEP_MS: Final = 2
"""The journal's times are whole milliseconds of one wall clock, the socket's are floats of another reading of it."""


class Invariant(StrEnum):
    """One promise."""

    ONE_ENDING = auto()
    ONE_VOICE = auto()
    ONLY_WHAT_WAS_PUBLISHED = auto()
    ATTEMPTS_BOUNDED = auto()
    NO_ATTEMPT_AFTER_DELIVERY = auto()
    ONE_PUBLISHER = auto()
    STOPPED_IN_TIME = auto()
    NO_SLOT_LEFT = auto()
    TERMINAL_EVENT_IS_TRUE = auto()
    REFUSAL_IS_TRUE = auto()
    RECORDED_BEFORE_DELIVERED = auto()
    JOURNAL_AGREES = auto()
    JOURNAL_KEEPS_ITS_RULES = auto()
    ACCESS_LOGS_AGREE = auto()
    TOOL_ACTS_ONCE = auto()
    EXPECTED_ENDING = auto()
    """Not of every gateway, but of this point: the ending that it must lead to (expectations.py)."""
    FAULT_STRUCK = auto()
    """The suite's own: a fault that did not happen proves nothing."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise, and how."""

    invariant: Invariant
    how: str


Rule = Callable[[Evidence, Answer], Iterator[str]]


def _one_ending(evidence: Evidence, answer: Answer) -> Iterator[str]:
    """One complete answer or one terminal event or one error; never two of them, never none while the connection held."""
    match answer.ending:
        case Ending.UNREADABLE:
            tail = [event.data for event in answer.events[-2:]]
            yield f"status {answer.status}, ended properly, and is neither a whole answer nor a terminal event: {tail}"
        case Ending.CUT if evidence.client.closed_at is None:
            yield "it never ended"
        case Ending.CUT if not evidence.gateway_broken:
            yield f"the connection was cut ({evidence.client.peer}) under status {answer.status}"
        case Ending.COMPLETE if len(answer.text.split()) != evidence.tokens:
            yield f"a whole answer of {len(answer.text.split())} tokens, not {evidence.tokens}"
        case Ending.INTERRUPTED if answer.is_finished:
            yield "a terminal event after the finish"
    marks = [number for number, event in enumerate(answer.events) if event.data == "[DONE]"]
    if marks and marks[0] != len(answer.events) - 1:
        yield "something came after [DONE]"


def _one_voice(evidence: Evidence, answer: Answer) -> Iterator[str]:
    """Text of two attempts is never joined (R10)."""
    if len(voices(answer.text)) > 1 or not is_counted(answer.text):
        yield f"the client's text is {answer.text!r}"


def _only_what_was_published(evidence: Evidence, answer: Answer) -> Iterator[str]:
    """What the client has is the beginning of what one replica says that it published."""
    for voice in voices(answer.text):
        texts = [attempt.text for attempt in evidence.attempts if attempt.replica == voice]
        if evidence.sources.replicas and not any(text.startswith(answer.text) for text in texts):
            yield f"the client has {answer.text!r}, {voice} published {texts}"


def _attempts_bounded(evidence: Evidence, answer: Answer) -> Iterator[str]:
    counts = {
        "replicas": len(evidence.attempts),
        "egress log": sum(line.listener == "egress" for line in evidence.access),
        "journal": sum(entry.kind == EventKind.ATTEMPT_STARTED for entry in evidence.journal),
        "answer": answer.attempts,
    }
    for source, count in counts.items():
        if count > evidence.bounds.attempts_max:
            yield f"{count} attempts by the {source}, {evidence.bounds.attempts_max} allowed"


def _no_attempt_after_delivery(evidence: Evidence, answer: Answer) -> Iterator[str]:
    """No second generation starts once a delta was delivered (R2, R17.3)."""
    if not answer.contents:
        return
    delivered_at = answer.contents[0][0]
    for attempt in evidence.attempts:
        if attempt.received_at > delivered_at:
            yield f"{attempt.replica} got an attempt {attempt.received_at - delivered_at:.3f} s after the first delivery"


def _one_publisher(evidence: Evidence, answer: Answer) -> Iterator[str]:
    """When an attempt begins, the one before it can publish no more, and never does (R6, R7)."""
    for before, after in pairwise(evidence.attempts):
        if before.quiet_at is None or before.quiet_at > after.received_at:
            yield f"{after.replica} was asked while {before.replica} could still publish"
        late = [chunk for chunk in before.published if chunk.kind in CONTENT_KINDS and chunk.at > after.received_at]
        if late:
            yield f"{before.replica} published {late[0].text!r} after {after.replica} had been asked"


def _stopped_in_time(evidence: Evidence, answer: Answer) -> Iterator[str]:
    """An attempt that nobody wants is over within its bound: the replica has seen the cancel, or its lease's end (R5, R7)."""
    wanted_until = evidence.client.over_at
    if wanted_until is None:
        return
    for attempt in evidence.attempts:
        due = max(wanted_until, attempt.stopped_until or 0.0) + evidence.bounds.over_within_s
        if attempt.over_at is None or attempt.over_at > due:
            yield f"{attempt.replica} was still at work {evidence.bounds.over_within_s:g} s after the client's end"


def _no_slot_left(evidence: Evidence, answer: Answer) -> Iterator[str]:
    for attempt in evidence.attempts:
        if attempt.slot_taken_at is not None and attempt.slot_freed_at is None and attempt.process_ended_at is None:
            yield f"{attempt.replica} still holds the slot"


def _terminal_event_is_true(evidence: Evidence, answer: Answer) -> Iterator[str]:
    """R9: what the terminal event says is what the client's own bytes say."""
    if answer.ending is not Ending.INTERRUPTED:
        return
    (error,) = answer.errors
    expected = {
        "code": "upstream_decode_interrupted",
        "partial_output": True,
        "retryable": False,
        "request_id": answer.request_id,
    }
    for name, value in expected.items():
        if error.get(name) != value:
            yield f"{name} is {error.get(name)!r}, not {value!r}"
    told, received = error.get("delivered_output_tokens"), len(answer.text.split())
    # Where the stream has told its usage, the client has that number from there, and it may count tokens without text.
    if told != received and (error.get("delivered_output_tokens_source") != "usage" or told not in answer.told_usages):
        yield f"delivered_output_tokens is {told!r}, not {received}"
    yield from (f"{name} is missing" for name in ("message", "reason") if not error.get(name))
    if not answer.text:
        yield "nothing was delivered before it"


def _refusal_is_true(evidence: Evidence, answer: Answer) -> Iterator[str]:
    """Before the boundary: an honest status, and a body that says that nothing was delivered."""
    refusal = answer.refusal
    if answer.ending is not Ending.REFUSED or refusal is None:
        return
    if (refusal.get("partial_output"), refusal.get("delivered_output_tokens"), refusal.get("retryable")) != (False, 0, False):
        yield f"the error claims a delivery or a retry: {refusal}"
    if not refusal.get("code") or not refusal.get("request_id"):
        yield f"the error has no code or no request id: {refusal}"
    if answer.status is None or answer.status < 400:
        yield f"an error under status {answer.status}"


def _recorded_before_delivered(evidence: Evidence, answer: Answer) -> Iterator[str]:
    """The journal may claim a delivery that did not arrive, never the reverse."""
    if not answer.contents or not evidence.sources.journal:
        return
    boundary = _entry(evidence, EventKind.FIRST_DELTA_SENT)
    if boundary is None:
        yield "output was delivered, and the journal has no first_delta_sent"
        return
    delivered_at_ms = (answer.contents[0][0] + evidence.client.wall_offset_s) * 1000
    if boundary.at_ms > delivered_at_ms + CLOCK_STEP_MS:
        yield f"first_delta_sent was recorded {boundary.at_ms - delivered_at_ms:.1f} ms after the client had the delta"
    end = _entry(evidence, EventKind.ENDED)
    if end is not None and end.detail.get("delivered_output_tokens_source") != "unknown":
        told = end.detail.get("delivered_output_tokens")
        received = len(answer.text.split())
        if not isinstance(told, int | float) or told < received:
            yield f"the journal tells of {told} delivered tokens, the client has {received}"


_OUTCOMES: Final = {
    Ending.COMPLETE: frozenset({Outcome.COMPLETED}),
    Ending.INTERRUPTED: frozenset({Outcome.INTERRUPTED}),
    Ending.REFUSED: frozenset({Outcome.FAILED}),
    Ending.PASSED: frozenset({Outcome.FAILED}),
    # A client that leaves with the finish in its hands has a whole answer, and one that leaves early may cross the end.
    Ending.LEFT: frozenset({Outcome.CANCELLED, Outcome.COMPLETED, Outcome.INTERRUPTED, Outcome.FAILED}),
}


def _journal_agrees(evidence: Evidence, answer: Answer) -> Iterator[str]:
    """One request, one outcome, and the one that the client saw."""
    if not evidence.sources.journal or evidence.gateway_broken:
        return
    end = _entry(evidence, EventKind.ENDED)
    outcomes = _OUTCOMES.get(answer.ending)
    if end is None:
        if answer.ending is not Ending.REFUSED or answer.attempts:
            yield "the journal has no outcome"
    elif outcomes is not None and end.detail.get("outcome") not in outcomes:
        yield f"the client's answer was {answer.ending}, the journal says {end.detail.get('outcome')}"
    elif answer.ending is Ending.LEFT and not answer.contents and end.detail.get("outcome") == Outcome.COMPLETED:
        yield "the journal says completed of a request whose client left with nothing"
    started = [entry.attempt_id for entry in evidence.journal if entry.kind == EventKind.ATTEMPT_STARTED]
    asked = [attempt.attempt_id for attempt in evidence.attempts]
    if evidence.sources.replicas and not set(asked) <= set(started):
        yield f"replicas were asked for attempts that the journal does not know: {sorted(map(str, set(asked) - set(started)))}"


def _journal_keeps_its_rules(evidence: Evidence, answer: Answer) -> Iterator[str]:
    """extproc/journal/verify.py over this request."""
    events = tuple(_journal_event(evidence, entry) for entry in evidence.journal)
    for broken in verify(History(request_id=evidence.name, events=events, running=False), now_ms=0):
        yield f"{broken.invariant}: {broken.how}"


def _access_logs_agree(evidence: Evidence, answer: Answer) -> Iterator[str]:
    """Envoy saw one request at its front, every attempt once at its egress, and the same outcome as everybody else."""
    if not evidence.sources.access_log or evidence.gateway_broken:
        return
    front = [line for line in evidence.access if line.listener == "front"]
    if len(front) != 1:
        yield f"{len(front)} lines in the front listener's log"
    for attempt_id, count in Counter(line.attempt_id for line in evidence.access if line.listener == "egress").items():
        if count > 1:
            yield f"Envoy sent attempt {attempt_id} {count} times"
    outcomes = _OUTCOMES.get(answer.ending)
    for line in front:
        if line.outcome is not None and outcomes is not None and line.outcome not in outcomes:
            yield f"the client's answer was {answer.ending}, the front listener's log says {line.outcome}"
        if answer.ending is Ending.COMPLETE and line.outcome is None:
            yield "the front listener's log has no outcome of a whole answer"


def _tool_acts_once(evidence: Evidence, answer: Answer) -> Iterator[str]:
    """R12: whatever is repeated, the tool's own log has each action once."""
    for (request_id, call_id), count in Counter((action.request_id, action.call_id) for action in evidence.tool).items():
        if count > 1:
            yield f"the tool has carried out {call_id} of {request_id} {count} times"


def _fault_struck(evidence: Evidence, answer: Answer) -> Iterator[str]:
    if evidence.expects_fault and evidence.sources.replicas and not any(attempt.fault for attempt in evidence.attempts):
        yield f"no fault struck any of {len(evidence.attempts)} attempts"


RULES: Final[dict[Invariant, Rule]] = {
    Invariant.ONE_ENDING: _one_ending,
    Invariant.ONE_VOICE: _one_voice,
    Invariant.ONLY_WHAT_WAS_PUBLISHED: _only_what_was_published,
    Invariant.ATTEMPTS_BOUNDED: _attempts_bounded,
    Invariant.NO_ATTEMPT_AFTER_DELIVERY: _no_attempt_after_delivery,
    Invariant.ONE_PUBLISHER: _one_publisher,
    Invariant.STOPPED_IN_TIME: _stopped_in_time,
    Invariant.NO_SLOT_LEFT: _no_slot_left,
    Invariant.TERMINAL_EVENT_IS_TRUE: _terminal_event_is_true,
    Invariant.REFUSAL_IS_TRUE: _refusal_is_true,
    Invariant.RECORDED_BEFORE_DELIVERED: _recorded_before_delivered,
    Invariant.JOURNAL_AGREES: _journal_agrees,
    Invariant.JOURNAL_KEEPS_ITS_RULES: _journal_keeps_its_rules,
    Invariant.ACCESS_LOGS_AGREE: _access_logs_agree,
    Invariant.TOOL_ACTS_ONCE: _tool_acts_once,
    Invariant.FAULT_STRUCK: _fault_struck,
}


def _entry(evidence: Evidence, kind: EventKind) -> JournalEntry | None:
    return next((entry for entry in evidence.journal if entry.kind == kind), None)


def _journal_event(evidence: Evidence, entry: JournalEntry) -> JournalEvent:
    return JournalEvent(
        request_id=evidence.name,
        kind=EventKind(entry.kind),
        at_ms=entry.at_ms,
        attempt_id=entry.attempt_id,
        replica=entry.replica,
        detail=entry.detail,
    )


def attempts_in_order(attempts: tuple[AttemptEvidence, ...]) -> tuple[AttemptEvidence, ...]:
    """The order in which their replicas received them."""
    return tuple(sorted(attempts, key=lambda attempt: attempt.received_at))
