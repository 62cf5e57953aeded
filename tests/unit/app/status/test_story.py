"""Every word of the decision has words for people, and the sentences tell a stranger what happened."""

from enum import StrEnum

import pytest

from extproc.app.status import story
from extproc.decision.causes import Cause, Fencing
from extproc.decision.effects import Outcome
from extproc.decision.events import Deadline
from extproc.decision.gates import Gate
from extproc.decision.lease import FenceProof
from extproc.journal.records import EventKind, fold_all, lost_event
from extproc.processor.observation import Would
from tests.unit.telemetry.events import BEGIN_MS, INTERRUPTED, REFUSED, REPEATED, admitted, happened


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        (story.CAUSES, Cause),
        (story.FENCINGS, Fencing),
        (story.PROOFS, FenceProof),
        (story.GATES, Gate),
        (dict.fromkeys(story.REASONS, ""), [*Cause, *Gate, *Deadline]),
        (story._SENTENCES, EventKind),
        (story.WOULDS, Would),
    ],
)
def test_every_word_has_its_words(words: dict[StrEnum, object], kinds: list[StrEnum]) -> None:
    assert set(kinds) <= set(words)


def told(events) -> list[str]:
    facts = fold_all(events)
    return [story.sentence(event, facts) for event in events]


def test_a_repeat_is_told_with_its_proof_and_its_replicas() -> None:
    lines = told(REPEATED)
    assert lines[1] == "Attempt 1 was sent to replica 10.0.0.1:8000."
    assert lines[3].startswith("Attempt 1 failed: the connection to the replica was lost (seen: closed by the peer).")
    assert "attempt 2, to replica 10.0.0.2:8000. The retry budget holds 8 more." in lines[5]
    assert "proof: nothing listens at the replica's address any more" in lines[5]
    assert lines[-1] == "The answer is complete: 37 output tokens delivered."
    assert story.title(fold_all(REPEATED)) == "Completed on attempt 2: 37 output tokens delivered"


def test_an_interruption_says_what_the_client_has_and_why_it_was_not_repeated() -> None:
    last = told(INTERRUPTED)[-1]
    assert "The client has 12 output tokens, then got one error event (upstream_decode_interrupted)" in last
    assert "Because part of it was delivered, the request was not repeated." in last
    assert story.title(fold_all(INTERRUPTED)) == "Interrupted after 12 output tokens: the connection to the replica was lost"


def test_a_lost_processor_promises_the_client_nothing_that_nobody_could_send() -> None:
    """Who takes a request over knows neither how much arrived nor of any error event."""
    begun = INTERRUPTED[:3]
    interrupted = told([*begun, lost_event(fold_all(begun), BEGIN_MS + 5_000)])[-1]
    assert "the processor that served it is gone" in interrupted
    assert "an unknown number of output tokens and a connection that broke" in interrupted
    assert "got one error event" not in interrupted
    assert "the request was not repeated" in interrupted
    waiting = INTERRUPTED[:2]
    failed = told([*waiting, lost_event(fold_all(waiting), BEGIN_MS + 5_000)])[-1]
    assert "The client got nothing of an answer: the processor that served it is gone." in failed
    assert "replica's own error" not in failed


def test_a_refused_repeat_says_which_gate_refused() -> None:
    lines = told(REFUSED)
    assert "it is not proved that the failed attempt has stopped (attempt 1 may still be running)" in lines[-2]
    assert "source_attempt_not_fenced and nothing of an answer" in lines[-1]


@pytest.mark.parametrize("outcome", [None, *Outcome])
def test_every_outcome_has_a_title(outcome: Outcome | None) -> None:
    ended = () if outcome is None else (happened(EventKind.ENDED, 5, outcome=str(outcome), reason="request_error_404"),)
    title = story.title(fold_all((admitted(), *ended)))
    assert title[0].isupper()
    assert ("HTTP 404" in title) is (outcome in (Outcome.INTERRUPTED, Outcome.FAILED))
