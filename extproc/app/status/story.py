"""A request's events as sentences, for somebody who has never seen this project.

One table per vocabulary; a word that is missing in one is shown as it is.
"""

from collections.abc import Callable
from typing import Final

from extproc.decision.causes import Cause, Fencing
from extproc.decision.effects import Outcome
from extproc.decision.gates import Gate
from extproc.decision.lease import FenceProof
from extproc.decision.policy import Mode
from extproc.journal.records import PROCESSOR_LOST, EventKind, JournalEvent, RequestFacts
from extproc.processor.observation import CUT, Would

CAUSES: Final[dict[str, str]] = {
    Cause.NEVER_STARTED: "the replica never had the request",
    Cause.REPLICA_GONE: "the connection to the replica was lost",
    Cause.UNCERTAIN: "the replica went silent and may still be working",
    Cause.ENGINE_ERROR: "the replica's engine reported an error or ended the answer early",
    Cause.HUNG: "the replica's engine stands still",
    Cause.OVERLOAD: "the replica refused the request because it is full",
    Cause.RESPONSE_TOO_LARGE: "the answer is larger than this gateway may hold",
}
FENCINGS: Final[dict[str, str]] = {
    Fencing.NOT_NEEDED: "It has ended by itself, so nothing has to be stopped.",
    Fencing.CONFIRM: "Before anything else happens, its end is confirmed.",
    Fencing.REVOKE_AND_WAIT: "It may still be running, so its right to publish was taken back and its end is waited for.",
}
PROOFS: Final[dict[str, str]] = {
    FenceProof.NOT_STARTED: "the replica never started it",
    FenceProof.CONNECTION_CLOSED: "its connection is closed, and it had no other way to the client",
    FenceProof.CANCEL_ACKNOWLEDGED: "the replica confirmed that it has stopped",
    FenceProof.BOOT_CHANGED: "the replica's process is another one now",
    FenceProof.CONNECTION_REFUSED: "nothing listens at the replica's address any more",
    FenceProof.LEASE_EXPIRED: "its lease has run out, and the replica checks that before every chunk",
    FenceProof.POD_DELETED: "its pod was deleted",
    FenceProof.ENDED_BY_ITSELF: "it had ended by itself",
}
GATES: Final[dict[str, str]] = {
    Gate.SOURCE_FENCED: "it is not proved that the failed attempt has stopped",
    Gate.ATTEMPTS_LEFT: "the route allows no further attempt",
    Gate.RETRY_BUDGET: "too many requests are being repeated already",
    Gate.REPLAY_COST: "reading the prompt again would cost more than the route allows",
    Gate.TOOLS: "a tool was called, and a repeat could call it twice",
    Gate.REPLICA: "no other healthy replica serves the same model revision",
    Gate.DRAINING: "this gateway is shutting down",
}
REASONS: Final[dict[str, str]] = {
    **CAUSES,
    **GATES,
    "finished": "the answer is complete",
    "client_gone": "the client closed its connection",
    "draining": "this gateway was shutting down",
    "first_delta_ms": "the first token did not come within the route's deadline",
    "total_ms": "the answer took longer than the route's deadline",
    "idle_ms": "the replica was silent for longer than the route allows",
    "no_healthy_replica": "no healthy replica was known",
    "journal_unavailable": "the journal could not record the boundary",
    "internal_error": "the gateway broke one of its own rules",
    PROCESSOR_LOST: "the processor that served it is gone",
    CUT: "the stream was cut, most likely by the client",
}


def title(facts: RequestFacts) -> str:
    """One line: how it ended, or where it is."""
    tokens = tokens_words(facts)
    if facts.outcome is not None and facts.traits.get("mode") == Mode.OBSERVE:
        return f"Only observed: {facts.outcome} after {tokens}, {reason_words(facts)}"
    match facts.outcome:
        case None:
            return f"Running: {facts.phase}"
        case Outcome.COMPLETED:
            repeated = f" on attempt {len(facts.attempts)}" if len(facts.attempts) > 1 else ""
            return f"Completed{repeated}: {tokens} delivered"
        case Outcome.INTERRUPTED:
            return f"Interrupted after {tokens}: {reason_words(facts)}"
        case Outcome.FAILED:
            return f"Failed before anything was delivered: {reason_words(facts)}"
        case Outcome.CANCELLED:
            return f"Cancelled by the client after {tokens}"
        case _:
            return facts.outcome


def reason_words(facts: RequestFacts) -> str:
    """Why it ended so."""
    reason = facts.reason or ""
    if reason.startswith("request_error_"):
        return f"the replica refused the request itself (HTTP {reason.removeprefix('request_error_')})"
    return REASONS.get(reason, reason.replace("_", " "))


def sentence(event: JournalEvent, facts: RequestFacts) -> str:
    """What happened, in words. ``facts`` are the request's, at or after the event."""
    tell = _SENTENCES.get(event.kind)
    return str(event.kind).replace("_", " ") if tell is None else tell(event, facts)


def number_of(event: JournalEvent, facts: RequestFacts) -> int:
    """Which attempt the event is of, from 1; 0 where it is of none."""
    return next((place for place, each in enumerate(facts.attempts, 1) if each.attempt_id == event.attempt_id), 0)


def _admitted(event: JournalEvent, facts: RequestFacts) -> str:
    kind = "A streamed answer" if facts.stream else "An answer in one piece"
    model = f" for model {facts.model}" if facts.model else ""
    return f"The request was admitted{model}. {kind} was asked for."


def _attempt_started(event: JournalEvent, facts: RequestFacts) -> str:
    number = number_of(event, facts)
    if number <= 1:
        return f"Attempt {number} was sent to replica {event.replica}."
    budget = event.detail.get("retry_budget")
    left = f" The retry budget holds {budget:g} more." if isinstance(budget, int | float) else ""
    proof = facts.attempts[number - 2].fence_proof
    proved = f" (proof: {PROOFS.get(proof, proof)})" if proof else ""
    return (
        f"Attempt {number - 1} can't publish any more{proved}, nothing was delivered and every gate is open, "
        f"so the whole request was sent again: attempt {number}, to replica {event.replica}.{left}"
    )


def _response_started(event: JournalEvent, facts: RequestFacts) -> str:
    status = event.detail.get("status")
    return f"The replica answered with HTTP status {status}. That is not delivery: nothing of it went to the client yet."


def _first_delta_sent(event: JournalEvent, facts: RequestFacts) -> str:
    return "The boundary: the first delta was handed to the client. From here on the request may not be repeated."


def _attempt_failed(event: JournalEvent, facts: RequestFacts) -> str:
    cause = str(event.detail.get("cause"))
    fencing = FENCINGS.get(str(event.detail.get("fencing")), "")
    evidence = event.detail.get("evidence")
    seen = f" (seen: {evidence})" if evidence else ""
    return f"Attempt {number_of(event, facts)} failed: {CAUSES.get(cause, cause)}{seen}. {fencing}".strip()


def _cancel_sent(event: JournalEvent, facts: RequestFacts) -> str:
    why = event.detail.get("why")
    return f"Attempt {number_of(event, facts)} was broken off and its replica told to stop ({why})."


def _fenced(event: JournalEvent, facts: RequestFacts) -> str:
    proof = str(event.detail.get("proof"))
    return f"Attempt {number_of(event, facts)} can't publish any more, and this proves it: {PROOFS.get(proof, proof)}."


def _fence_given_up(event: JournalEvent, facts: RequestFacts) -> str:
    return f"It could not be proved that attempt {number_of(event, facts)} has stopped, so nothing may be sent elsewhere."


def _repeat_refused(event: JournalEvent, facts: RequestFacts) -> str:
    gate = str(event.detail.get("gate"))
    return f"The request was not repeated: {GATES.get(gate, gate)} ({event.detail.get('detail')})."


def _ended(event: JournalEvent, facts: RequestFacts) -> str:
    if "enforce_would" in event.detail:
        return _observed_end(event, facts)
    tokens = tokens_words(facts)
    match facts.outcome:
        case Outcome.COMPLETED:
            return f"The answer is complete: {tokens} delivered."
        case Outcome.INTERRUPTED if facts.reason == PROCESSOR_LOST:
            return (
                f"The answer broke off: {reason_words(facts)}. The client has {tokens} and a connection that broke: nobody was "
                "left to send it an error event. Because part of it may have been delivered, the request was not repeated."
            )
        case Outcome.FAILED if facts.reason == PROCESSOR_LOST:
            told = "It was told so by Envoy (503), or its connection broke."
            return f"The client got nothing of an answer: {reason_words(facts)}. {told}"
        case Outcome.INTERRUPTED:
            return (
                f"The answer broke off: {reason_words(facts)}. The client has {tokens}, then got one error event "
                f"({facts.error_code}) and the end of its stream. Because part of it was delivered, the request was not repeated."
            )
        case Outcome.FAILED:
            code = f"the error {facts.error_code}" if facts.error_code else "the replica's own error"
            return f"The client got {code} and nothing of an answer: {reason_words(facts)}."
        case _:
            return f"The client left after {tokens}. Its replica's work was stopped and nothing new was started."


WOULDS: Final[dict[str, str]] = {
    Would.SAME: "Mode enforce would have done nothing else.",
    Would.REPEAT: "Mode enforce would have sent the whole request again, to another replica.",
    Would.ERROR: "Mode enforce would have answered with the error {code}.",
    Would.TERMINAL_EVENT: "Mode enforce would have ended the stream with one error event that the client understands ({code}).",
}


def _observed_end(event: JournalEvent, facts: RequestFacts) -> str:
    """Of a request that was only watched (mode ``observe``)."""
    would = str(event.detail["enforce_would"])
    words = WOULDS.get(would, would).format(code=event.detail.get("enforce_code"))
    tokens = tokens_words(facts)
    return f"Only observed: {facts.outcome}, {reason_words(facts)}; the client was sent {tokens}. {words}"


def tokens_words(facts: RequestFacts) -> str:
    """How much the client was given; nobody knows it where the processor that counted is gone."""
    if facts.delivered_output_tokens_source == "unknown":
        return "an unknown number of output tokens"
    number = facts.delivered_output_tokens
    return f"{number} output token" if number == 1 else f"{number} output tokens"


_SENTENCES: Final[dict[EventKind, Callable[[JournalEvent, RequestFacts], str]]] = {
    EventKind.ADMITTED: _admitted,
    EventKind.ATTEMPT_STARTED: _attempt_started,
    EventKind.RESPONSE_STARTED: _response_started,
    EventKind.FIRST_DELTA_SENT: _first_delta_sent,
    EventKind.ATTEMPT_FAILED: _attempt_failed,
    EventKind.CANCEL_SENT: _cancel_sent,
    EventKind.FENCED: _fenced,
    EventKind.FENCE_GIVEN_UP: _fence_given_up,
    EventKind.REPEAT_REFUSED: _repeat_refused,
    EventKind.ENDED: _ended,
}
