"""Judges one request: every promise that holds for any gateway, and the ending that its fault point must lead to."""

from extproc.faults.answers import Answer
from extproc.faults.evidence import Evidence
from extproc.faults.expectations import Ending, expected_endings
from extproc.faults.invariants import RULES, Invariant, Violation
from extproc.faults.points import Point


def read_answer(evidence: Evidence) -> Answer:
    """What its client has."""
    return Answer(evidence.api, evidence.stream, evidence.client)


def check(evidence: Evidence, point: Point | None = None) -> tuple[Violation, ...]:
    """Every broken promise; with a ``point`` also an ending that is wrong there."""
    answer = read_answer(evidence)
    violations = [Violation(invariant, how) for invariant, rule in RULES.items() for how in rule(evidence, answer)]
    if point is not None and answer.ending not in (allowed := expected_endings(point)):
        told = ", ".join(sorted(allowed))
        violations.append(Violation(Invariant.EXPECTED_ENDING, f"the client's answer ended {answer.ending}; right is: {told}"))
    return tuple(violations)


def ending_of(evidence: Evidence) -> Ending:
    """How it ended for its client."""
    return read_answer(evidence).ending
